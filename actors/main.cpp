#include "actors/commands.hpp"
#include "runtime/error.hpp"
#include "runtime/nearest.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

/// CLI11 would only say that a command is required.
void refuse_unknown_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-')
    return;
  std::vector<std::string> known;
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(command->get_name());
  const std::string wanted = argv[1];
  if (std::find(known.begin(), known.end(), wanted) == known.end())
    throw millrace::user_error("found \"" + wanted + "\", expected a command"
                               + millrace::did_you_mean(wanted, known)
                               + "; `millrace --help` lists them");
}

} // namespace

/// millrace COMMAND …: each command declares its own options in actors/commands/.
int main(int argc, char** argv) {
  // UCX would install handlers for SIGSEGV and others at load.
  setenv("UCX_ERROR_SIGNALS", "", 0);
  CLI::App app{"Asynchronous reinforcement learning for language models"};
  app.name("millrace");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("millrace " MILLRACE_VERSION));
  int status = 0;
  millrace::add_run_command(app, status);
  millrace::add_up_command(app, status);
  millrace::add_node_command(app, status);
  millrace::add_cluster_commands(app, status);
  millrace::add_certs_command(app, status);
  millrace::add_top_command(app, status);
  millrace::add_inspect_command(app, status);
  millrace::add_generate_command(app, status);
  millrace::add_eval_command(app, status);
  millrace::add_serve_command(app, status);
  millrace::add_trainer_rank_command(app, status);
  millrace::add_check_command(app, status);
  millrace::add_options_command(app, status);
  millrace::add_plugin_commands(app, status);
  try {
    refuse_unknown_command(app, argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const millrace::user_error& e) {
    std::fprintf(stderr, "millrace: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "millrace: %s\n", e.what());
    return 1;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "millrace: what it said could not be written (is the disk full?)\n");
    return 1;
  }
  return status;
}
