#include "actors/run_arguments.hpp"

#include "actors/interrupt.hpp"
#include "actors/number_between.hpp"
#include "actors/plugin_registry.hpp"
#include "runtime/clock.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/model/tensor_pool.hpp"
#include "runtime/run_directory.hpp"

#include <CLI/CLI.hpp>

#include <filesystem>
#include <sys/resource.h>

namespace millrace {

void run_arguments::declare(CLI::App& command) {
  command.add_option("config,--config", config,
                     "Configuration file (JSON, comments allowed); with --resume the run's own "
                     "where none is given");
  command.add_option("--seed", seed, "Seed of everything random; overrides the file's")
    ->check(whole_number());
  command.add_option("--run-dir", directory,
                     "Where the run leaves its files (default: a fresh folder under runs/)");
  command.add_option("--data", data, "JSONL file of prompts: `question`, `answer` with #### N");
  command.add_flag("--resume", resume, "Go on from the newest checkpoint in --run-dir");
  command.add_option("--set", assignments, "path=value, any option of the file; may be repeated")
    ->allow_extra_args(false);
}

std::string run_arguments::file() const {
  if (!config.empty())
    return config;
  if (resume && !directory.empty())
    return (std::filesystem::path(directory) / "config.json").string();
  throw user_error("which configuration? Name its file, or --run-dir DIR --resume to go on with a run");
}

std::vector<std::string> run_arguments::changes() const {
  auto all = assignments;
  if (seed)
    all.push_back("seed=" + *seed);
  if (!data.empty()) {
    all.push_back("data.source=jsonl");
    all.push_back("data.file=" + data);
  }
  return all;
}

settings run_arguments::load() const {
  auto s = load_settings(file(), changes());
  load_plugins(s);
  return s;
}

settings run_arguments::load_for_training() const {
  auto s = load();
  require_files(s, file());
  return s;
}

std::string run_arguments::run_directory(const settings& s) const {
  auto out = !directory.empty() ? directory : s.run.dir;
  if (!out.empty())
    return out;
  if (resume)
    throw user_error("--resume: which run? Name its folder with --run-dir DIR");
  return fresh_run_path(file(), real_clock().wall()).string();
}

void prepare_process() {
  model::pool_tensor_memory();
  // Strangers at a port, and generators in numbers, cost descriptors.
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  note_interrupts();
  ignore_broken_pipes();
}

} // namespace millrace
