#include "actors/commands.hpp"
#include "actors/interrupt.hpp"
#include "actors/run_arguments.hpp"
#include "actors/training_run.hpp"

#include <CLI/CLI.hpp>

#include <memory>

namespace millrace {

void add_run_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("run", "Train from a configuration file, in this process");
  auto a = std::make_shared<run_arguments>();
  a->declare(*cmd);
  cmd->callback([a, &status] {
    run_request request;
    request.options = a->load_for_training();
    request.resume = a->resume;
    request.directory = a->run_directory(request.options);
    request.interrupted = [] { return interrupts() > 0; };
    prepare_process();
    status = run_training(request) == run_outcome::done ? 0 : 130;
  });
}

} // namespace millrace
