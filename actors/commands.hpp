#pragma once

namespace CLI {
class App;
}

namespace millrace {

struct sampling_params;

// Each adds one command to the program. `status` becomes the exit status: 0 when all is well, 1
// when a run failed, 2 for bad input, 130 when it was interrupted.

void add_run_command(CLI::App& app, int& status);
void add_node_command(CLI::App& app, int& status);
void add_up_command(CLI::App& app, int& status);
void add_cluster_commands(CLI::App& app, int& status);
void add_certs_command(CLI::App& app, int& status);
void add_top_command(CLI::App& app, int& status);
void add_inspect_command(CLI::App& app, int& status);
void add_trainer_rank_command(CLI::App& app, int& status);
void add_check_command(CLI::App& app, int& status);
void add_options_command(CLI::App& app, int& status);
void add_generate_command(CLI::App& app, int& status);
void add_eval_command(CLI::App& app, int& status);
void add_serve_command(CLI::App& app, int& status);
void add_plugin_commands(CLI::App& app, int& status);

/// --max-tokens, --temperature and what else commands that sample share.
void add_sampling_arguments(CLI::App& command, sampling_params& s);

} // namespace millrace
