#include "actors/opened_model.hpp"

#include "runtime/error.hpp"
#include "runtime/model/checkpoint.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <thread>

namespace millrace {

void add_engine_arguments(CLI::App& command, engine_arguments& a) {
  command.add_option("model", a.model, "Model folder (config.json, safetensors, tokenizer)")
    ->required();
  command.add_option("--dtype", a.dtype, "Precision of the weights: fp32, bf16 or int8")
    ->check(CLI::IsMember({"fp32", "bf16", "int8"}));
  command.add_option("--threads", a.threads, "Threads; 0: one for each core")
    ->check(CLI::Range(0, 1024));
  command.add_option("--max-batch", a.max_batch, "Answers that are decoded at a time")
    ->check(CLI::Range(1, 65536));
  command.add_option("--context", a.max_context,
                     "Tokens of prompt and answer together; 0: what the model has, 8192 at most")
    ->check(CLI::Range(0, 1 << 24));
}

opened_model open_model(const engine_arguments& a) {
  const std::filesystem::path folder = a.model;
  if (!std::filesystem::exists(folder / "config.json"))
    throw user_error(a.model + ": no model is there; expected a folder with config.json, "
                     "safetensors and a tokenizer");
  opened_model m;
  m.config = model::read_config(folder);
  m.tokens = model::load_tokenizer(folder);
  generation::engine_options o;
  o.max_batch = a.max_batch;
  o.threads = a.threads > 0 ? a.threads
                            : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  o.weights = a.dtype == "bf16" ? dtype::bf16 : a.dtype == "int8" ? dtype::i8 : dtype::f32;
  m.context = a.max_context > 0
                ? a.max_context
                : static_cast<std::int32_t>(
                    std::min<std::int64_t>(m.config.max_position_embeddings, 8192));
  o.max_context = m.context;
  m.engine = generation::make_engine(o, m.config, m.tokens);
  model::load_checkpoint(folder, m.engine->staging());
  m.engine->prepare();
  m.engine->install({0});
  return m;
}

} // namespace millrace
