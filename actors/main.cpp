#include "actors/commands.hpp"
#include "runtime/error.hpp"
#include "runtime/nearest.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <poll.h>
#include <string>
#include <unistd.h>
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

/// Where, what, what instead; of an option that it did not expect CLI11 would only say so.
std::string about(const CLI::ParseError& e, const CLI::App& app) {
  const auto* command = &app;
  for (auto given = app.get_subcommands(); !given.empty(); given = command->get_subcommands())
    command = given.front();
  const auto called = "millrace" + (command == &app ? std::string() : " " + command->get_name());
  for (auto word : command->remaining()) {
    word = word.substr(0, word.find('='));
    if (!word.starts_with("--"))
      continue;
    std::vector<std::string> known;
    for (const auto* option : command->get_options())
      for (const auto& name : option->get_lnames())
        known.push_back("--" + name);
    const auto has_set = std::find(known.begin(), known.end(), "--set") != known.end();
    const auto path = has_set && word.find('.') != std::string::npos;
    return "found \"" + word + "\", expected an option of `" + called + "`"
           + (path ? "; what the configuration holds goes with --set " + word.substr(2) + "=VALUE"
                   : millrace::did_you_mean(word, known) + "; --help lists them");
  }
  return std::string(e.what()) + "; `" + called + " --help` shows what it takes";
}

/// Of a pipe whose other end is closed: no.
bool somebody_reads() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return poll(&out, 1, 0) != 1 || (out.revents & POLLERR) == 0;
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
    if (e.get_exit_code() == 0)
      return app.exit(e); // --help, --version
    std::fprintf(stderr, "millrace: %s\n", about(e, app).c_str());
    return 2;
  } catch (const millrace::user_error& e) {
    std::fprintf(stderr, "millrace: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "millrace: %s\n", e.what());
    return 1;
  }
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && somebody_reads()) {
    std::fprintf(stderr, "millrace: what it said could not be written (is the disk full?)\n");
    return 1;
  }
  return status;
}
