#pragma once

#include "rollout/engine.hpp"

#include <filesystem>
#include <memory>
#include <string>

namespace CLI {
class App;
}

namespace millrace {

/// How the commands that answer with a model use the machine.
struct engine_arguments {
  std::string model;          ///< a Hugging Face folder, or that of a run or checkpoint
  std::string device = "cpu"; ///< cpu or cuda
  std::string dtype = "fp32"; ///< fp32, bf16, int8 (on the CPU) or fp8 (on a CUDA device)
  std::int32_t threads = 0;   ///< 0: as many as there are cores
  std::int32_t max_batch = 32;
  std::int32_t max_context = 0; ///< 0: the model's, 8192 at most
};

/// Declares MODEL and the options above.
void add_engine_arguments(CLI::App& command, engine_arguments& a);

/// A model ready to answer.
struct opened_model {
  std::filesystem::path folder; ///< where it was found
  model::model_config config;
  std::shared_ptr<model::tokenizer> tokens;
  std::unique_ptr<generation::engine> engine;
  std::int32_t context = 0; ///< tokens of prompt and answer
};

/// Throws user_error naming what is missing or doesn't fit.
opened_model open_model(const engine_arguments& a);

} // namespace millrace
