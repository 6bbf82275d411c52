#include "actors/commands.hpp"
#include "actors/training_run.hpp"
#include "runtime/clock.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/run_directory.hpp"

#include <CLI/CLI.hpp>

#include <csignal>
#include <malloc.h>
#include <memory>

namespace millrace {

namespace {

volatile std::sig_atomic_t interrupts = 0;

void on_interrupt(int number) {
  interrupts = interrupts + 1;
  if (interrupts > 1) { // once is polite; twice ends it here and now
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

struct run_arguments {
  std::string config, directory, data;
  std::vector<std::string> assignments;
  std::uint64_t seed = 0;
  bool has_seed = false;
  bool resume = false;
};

settings settings_of(const run_arguments& a) {
  auto assignments = a.assignments;
  if (!a.data.empty()) {
    assignments.push_back("data.source=jsonl");
    assignments.push_back("data.file=" + a.data);
  }
  if (a.has_seed)
    assignments.push_back("seed=" + std::to_string(a.seed));
  return load_settings(a.config, assignments);
}

int run(const run_arguments& a) {
  // Page faults are dear: keep what tensors gave back.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  run_request request;
  request.options = settings_of(a);
  request.resume = a.resume;
  request.directory = !a.directory.empty() ? a.directory : request.options.run.dir;
  if (request.directory.empty()) {
    if (a.resume)
      throw user_error("--resume: which run? Name its folder with --run-dir DIR");
    request.directory = fresh_run_path(a.config, real_clock().wall());
  }
  request.interrupted = [] { return interrupts > 0; };
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  return run_training(request) == run_outcome::done ? 0 : 130;
}

} // namespace

void add_run_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("run", "Train from a configuration file");
  auto a = std::make_shared<run_arguments>();
  cmd->add_option("config", a->config, "Configuration file (JSON, comments allowed)")->required();
  cmd->add_option_function<std::uint64_t>(
    "--seed", [a](std::uint64_t seed) { a->seed = seed, a->has_seed = true; },
    "Seed of everything random; overrides the file's");
  cmd->add_option("--run-dir", a->directory, "Where the run leaves its files (default: a fresh "
                                             "folder under runs/)");
  cmd->add_option("--data", a->data, "JSONL file of prompts: `question`, `answer` with #### N");
  cmd->add_flag("--resume", a->resume, "Go on from the newest checkpoint in --run-dir");
  cmd->add_option("--set", a->assignments, "path=value, any option of the file; may be repeated")
    ->allow_extra_args(false);
  cmd->callback([a, &status] { status = run(*a); });
}

} // namespace millrace
