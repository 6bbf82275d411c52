#include "actors/opened_model.hpp"

#include "actors/engine_device.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/model/weight_transfer.hpp"
#include "trainer/checkpoint.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <thread>

namespace millrace {

void add_engine_arguments(CLI::App& command, engine_arguments& a) {
  command.add_option("model", a.model, "Model folder (config.json, safetensors, tokenizer); or a "
                                       "run's, for its newest checkpoint")
    ->required();
  command.add_option("--device", a.device, "What computes: the CPU, or the first CUDA device")
    ->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  command.add_option("--dtype", a.dtype, "Precision of the weights: fp32, bf16, or 8 bits: int8 on the "
                                         "CPU, fp8 (E4M3) on a CUDA device")
    ->check(CLI::IsMember({"fp32", "bf16", "int8", "fp8"}))->capture_default_str();
  command.add_option("--threads", a.threads, "Threads; 0: one for each core")
    ->check(CLI::Range(0, 1024));
  command.add_option("--max-batch", a.max_batch, "Answers that are decoded at a time")
    ->check(CLI::Range(1, 65536));
  command.add_option("--context", a.max_context,
                     "Tokens of prompt and answer together; 0: what the model has, 8192 at most")
    ->check(CLI::Range(0, 1 << 24));
}

namespace {

namespace fs = std::filesystem;

/// Of a run's folder the model of the newest valid checkpoint, of a checkpoint's folder its model,
/// proven by their manifest; else as it is.
fs::path model_folder(const fs::path& given) {
  if (fs::exists(given / "model" / "config.json")) {
    if (fs::exists(given / "manifest.json"))
      (void)trainer::checkpoint_store::open(given, "model");
    return given / "model";
  }
  const bool run = fs::exists(given / "checkpoints");
  if (run || fs::exists(given / "latest")) {
    const auto warn = [](const std::string& text) { log::warning("model", text); };
    const trainer::checkpoint_store all(run ? given / "checkpoints" : given, 1, warn);
    if (const auto newest = all.newest("model"))
      return newest->folder / "model";
    throw user_error(given.string() + ": this run has no checkpoint yet");
  }
  if (!fs::exists(given / "config.json"))
    throw user_error(given.string() + ": no model is there; expected a folder with config.json, "
                     "safetensors and a tokenizer, or that of a run or checkpoint");
  return given;
}

dtype type_of(const engine_arguments& a) {
  const bool cuda = a.device == "cuda";
  if ((a.dtype == "fp8" && !cuda) || (a.dtype == "int8" && cuda))
    throw user_error("--dtype: found \"" + a.dtype + "\" with --device " + a.device
                     + ", whose 8 bits are \"" + (cuda ? "fp8" : "int8") + "\"");
  return a.dtype == "bf16" ? dtype::bf16
         : a.dtype == "int8" ? dtype::i8 : a.dtype == "fp8" ? dtype::f8_e4m3 : dtype::f32;
}

} // namespace

opened_model open_model(const engine_arguments& a) {
  opened_model m;
  m.folder = model_folder(a.model);
  const auto& folder = m.folder;
  m.config = model::read_config(folder);
  m.tokens = model::load_tokenizer(folder);
  generation::engine_options o;
  o.max_batch = a.max_batch;
  o.threads = a.threads > 0 ? a.threads
                            : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  o.weights = type_of(a);
  place_engine(o, a.device == "cuda" ? compute_device::cuda : compute_device::cpu, 0, "--device");
  m.context = a.max_context > 0
                ? a.max_context
                : static_cast<std::int32_t>(
                    std::min<std::int64_t>(m.config.max_position_embeddings, 8192));
  o.max_context = m.context;
  m.engine = generation::make_engine(o, m.config, m.tokens);
  model::load_weights(folder, m.engine->staging());
  m.engine->prepare();
  m.engine->install({0});
  return m;
}

} // namespace millrace
