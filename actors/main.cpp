#include "actors/commands.hpp"
#include "runtime/error.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>

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
