#include "bench/stale_task.hpp"

#include "actors/training_run.hpp"
#include "runtime/run_directory.hpp"
#include "runtime/scratch_folder.hpp"

#include <fstream>

namespace millrace::bench {

settings stale_task(std::uint64_t seed, const options& how) {
  settings s;
  s.seed = seed;
  s.run.steps = how.quick ? 5 : 800;
  s.run.log_every = 100000;
  s.model.architecture = {.layers = 2, .hidden = 64, .heads = 4, .kv_heads = 4,
                          .intermediate = 192, .max_positions = 64};
  s.data.held_out = 150;
  s.data.arithmetic.max_operand = 6;
  s.data.arithmetic.operations = "+-";
  s.rollout = {.eta = 8, .batch_size = 512, .group_size = 8, .max_concurrent = 4608};
  s.sampling.max_tokens = 6;
  s.generator.max_batch = 256;
  s.generator.dtype = weight_dtype::int8;
  s.warmup = {.enabled = true, .steps = how.quick ? 10 : 1000, .batch_size = 256, .lr = 1e-3,
              .target_accuracy = 0.3};
  s.trainer.lr = 5e-4;
  s.trainer.lr_warmup_steps = 10;
  s.trainer.lr_schedule = lr_schedule::linear;
  s.trainer.lr_floor = 0.05;
  s.trainer.minibatches = 2;
  s.trainer.micro_batch_tokens = 16384;
  s.eval.prompts = 150;
  s.log.level = log_level::error;
  return s;
}

finished_run train_run(const settings& s) {
  scratch_folder folder("millrace-bench");
  run_training({.options = s, .directory = folder.path() / "run", .quiet = true});
  std::ifstream in(folder.path() / "run" / "summary.json");
  return {nlohmann::json::parse(in)["accuracy_after"].get<double>(),
          read_metrics(folder.path() / "run" / "metrics.jsonl")};
}

} // namespace millrace::bench
