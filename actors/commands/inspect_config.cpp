#include "actors/commands.hpp"
#include "actors/plugin_registry.hpp"
#include "rollout/prompt_source.hpp"
#include "rollout/reward.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/exposition.hpp"
#include "trainer/memory_estimate.hpp"
#include "trainer/policy.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>

namespace millrace {

namespace {

/// What a run will take, as far as its settings tell.
void print_memory(const model::model_config& shape, const settings& s) {
  auto items = trainer::run_memory(shape, s);
  const auto ranks = s.trainer.parallel.dp * s.trainer.parallel.tp;
  std::printf("memory at its most, predicted%s:\n",
              ranks > 1 ? (", of the first of " + std::to_string(ranks)
                           + " processes of the trainer; the others need its trainer's lines").c_str()
                        : "");
  const auto lines = [&](bool on_device) {
    for (const auto& i : items)
      if (i.on_device == on_device)
        std::printf("  %-26s %10s  %s\n", i.what.c_str(), trainer::bytes_text(i.bytes).c_str(),
                    i.how.c_str());
  };
  if (const auto there = trainer::device_total(items); there > 0) {
    lines(true);
    std::printf("  %-26s %10s\n", "together, CUDA devices", trainer::bytes_text(there).c_str());
  }
  lines(false);
  const auto needs = trainer::total(items), has = trainer::physical_memory_bytes();
  std::printf("  %-26s %10s%s\n", "together", trainer::bytes_text(needs).c_str(),
              needs > has ? ("  more than this machine's " + trainer::bytes_text(has)).c_str() : "");
}

} // namespace

void add_check_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("check", "Validate a configuration file");
  auto file = std::make_shared<std::string>();
  auto assignments = std::make_shared<std::vector<std::string>>();
  cmd->add_option("config", *file, "Configuration file")->required();
  cmd->add_option("--set", *assignments, "path=value, as for run; may be repeated")
    ->allow_extra_args(false);
  auto data = std::make_shared<std::string>();
  cmd->add_option("--data", *data, "JSONL file of prompts, as for run");
  auto nodes = std::make_shared<bool>(false);
  cmd->add_flag("--nodes", *nodes, "Only print the cluster's nodes: name, tab, host");
  cmd->callback([=, &status] {
    auto changes = *assignments;
    if (!data->empty()) {
      changes.push_back("data.source=jsonl");
      changes.push_back("data.file=" + *data);
    }
    auto s = load_settings(*file, changes);
    if (*nodes) {
      for (const auto& n : s.cluster.nodes)
        std::printf("%s\t%s\n", n.name.c_str(), n.host.c_str());
      status = 0;
      return;
    }
    require_files(s, *file);
    load_plugins(s);
    for (const auto& remark : remarks(s))
      std::printf("note: %s\n", remark.c_str());
    static_cast<void>(make_reward(s.reward));
    if (s.data.source != "jsonl" || !s.data.file.empty())
      static_cast<void>(make_prompt_source(s.data, s.seed));
    for (const auto& remark : trainer::check_algorithm(s))
      std::printf("note: %s\n", remark.c_str());
    const auto shape = trainer::model_shape(s);
    check_plugin_parameters(s, shape ? &*shape : nullptr);
    if (shape)
      print_memory(*shape, s);
    std::printf("%s: no errors\n", file->c_str());
    status = 0;
  });
}

void add_options_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("options", "List every option with default, range and meaning");
  auto filter = std::make_shared<std::string>();
  cmd->add_option("filter", *filter, "Only those whose path contains this");
  auto metrics = std::make_shared<bool>(false);
  cmd->add_flag("--metrics", *metrics, "The metrics instead, with unit and meaning");
  cmd->callback([=, &status] {
    if (*metrics) {
      std::fputs(catalogue_table().c_str(), stdout);
      status = 0;
      return;
    }
    auto table = options_table(100, *filter);
    if (table.empty())
      throw user_error("options: no option's path contains \"" + *filter + "\"");
    std::fputs(table.c_str(), stdout);
    status = 0;
  });
}

} // namespace millrace
