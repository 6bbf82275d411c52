// `millrace node`: one node of a cluster, for whatever starts processes: `millrace up`, srun, systemd,
// Kubernetes.

#include "actors/commands.hpp"
#include "actors/interrupt.hpp"
#include "actors/link_hardening.hpp"
#include "actors/run_arguments.hpp"
#include "actors/training_run.hpp"
#include "actors/worker_node.hpp"
#include "runtime/error.hpp"
#include "runtime/nearest.hpp"

#include <CLI/CLI.hpp>

#include <cstdlib>
#include <memory>

namespace millrace {

namespace {

const node_settings& node_named(const settings& s, const std::string& name) {
  if (s.cluster.nodes.empty())
    throw user_error("cluster.nodes: is missing; `millrace run` trains in one process without it");
  if (const auto* n = s.cluster.find(name))
    return *n;
  std::vector<std::string> known;
  for (const auto& n : s.cluster.nodes)
    known.push_back(n.name);
  throw user_error("--name " + name + ": no such node in cluster.nodes"
                   + did_you_mean(name, known));
}

int run_node(const run_arguments& a, const std::string& name) {
  auto options = a.load();
  const auto& node = node_named(options, name);
  for (const auto& [variable, value] : node.env.items())
    setenv(variable.c_str(), value.get<std::string>().c_str(), 1);
  if (!node.devices.empty()) {
    std::string all;
    for (const auto& d : node.devices)
      all += (all.empty() ? "" : ",") + d;
    setenv("CUDA_VISIBLE_DEVICES", all.c_str(), 1);
  }
  prepare_process();
  limit_message_bytes(static_cast<std::size_t>(options.cluster.max_message_mb) << 20U);
  auto interrupted = [] { return interrupts() > 0; };
  if (node.actors.trainer == 0)
    return run_worker_node(options, node, interrupted);
  run_request request;
  request.options = a.load_for_training();
  request.resume = a.resume;
  request.cluster = true;
  request.directory = a.run_directory(options);
  request.interrupted = interrupted;
  return run_training(request) == run_outcome::done ? 0 : 130;
}

} // namespace

void add_node_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("node", "Run one node of a cluster (see cluster.nodes)");
  auto a = std::make_shared<run_arguments>();
  auto name = std::make_shared<std::string>();
  a->declare(*cmd);
  cmd->add_option("--name", *name, "Which of cluster.nodes this is")->required();
  cmd->callback([a, name, &status] { status = run_node(*a, *name); });
}

} // namespace millrace
