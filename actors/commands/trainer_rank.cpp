#include "actors/commands.hpp"
#include "actors/plugin_registry.hpp"
#include "runtime/model/tensor_pool.hpp"
#include "trainer/parallel.hpp"

#include <CLI/CLI.hpp>

#include <csignal>
#include <memory>
#include <string>
#include <sys/prctl.h>
#include <unistd.h>

namespace millrace {

/// What `run` starts for each rank of the trainer beside its own.
void add_trainer_rank_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("trainer-rank", "One rank of the trainer; `run` starts them itself, "
                                                 "unless trainer.parallel.spawn is false");
  auto rank = std::make_shared<int>(1);
  auto store = std::make_shared<std::string>();
  auto timeout = std::make_shared<double>(60);
  cmd->add_option("--rank", *rank, "1, 2, … dp·tp − 1; rank 0 is the process that `run` is")->required();
  cmd->add_option("--store", *store, "HOST:PORT at which rank 0 listens")->required();
  cmd->add_option("--timeout", *timeout, "Seconds; as trainer.parallel.timeout_s");
  auto parent = std::make_shared<int>(0);
  cmd->add_option("--parent", *parent, "Process that started this one, to end when it does");
  cmd->callback([=, &status] {
    if (*parent > 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != *parent) // it has ended already
        return;
    }
    model::pool_tensor_memory();
    trainer::follow_rank(*rank, *store, *timeout, load_plugins);
    status = 0;
  });
}

} // namespace millrace
