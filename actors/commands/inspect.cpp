#include "actors/commands.hpp"
#include "actors/http_client.hpp"
#include "actors/number_between.hpp"
#include "actors/top_view.hpp"
#include "runtime/error.hpp"
#include "runtime/metrics/exposition.hpp"
#include "runtime/metrics/metric.hpp"
#include "runtime/nearest.hpp"
#include "runtime/short_forms.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include <poll.h>

namespace millrace {

namespace {

struct inspect_arguments {
  std::string actor, run;
  bool json = false, follow = false;
  double every_s = 1;
};

volatile std::sig_atomic_t stop_inspect = 0;

nlohmann::json introspect(const run_address& run) {
  auto answer = http_get(run, "introspect");
  if (answer.status == 401)
    throw user_error(run.url + ": a token is needed; give the run's folder with --run");
  auto j = nlohmann::json::parse(answer.body, nullptr, false);
  (void) read_top_frame(j); // checks it
  return j;
}

/// By its name, or "node/name" where several nodes have one of it; in a cluster also without the node
/// where only one has it.
const nlohmann::json& find_actor(const nlohmann::json& all, const std::string& wanted) {
  std::vector<std::string> names, ends;
  const nlohmann::json* found = nullptr;
  for (const auto& a : all["actors"]) {
    auto name = a.value("name", "");
    if (name == wanted || a.value("node", "") + "/" + name == wanted)
      return a;
    if (name.ends_with("/" + wanted)) {
      ends.push_back(name);
      found = &a;
    }
    names.push_back(name);
  }
  if (ends.size() == 1)
    return *found;
  if (ends.size() > 1)
    throw user_error("inspect: several are called \"" + wanted + "\": " + quoted_list(ends));
  throw user_error("inspect: found \"" + wanted + "\", expected an actor of the run: "
                   + quoted_list(names) + did_you_mean(wanted, names));
}

std::string number(double x) {
  char buffer[48];
  if (x == std::trunc(x) && std::abs(x) < 1e15)
    std::snprintf(buffer, sizeof buffer, "%.0f", x);
  else
    std::snprintf(buffer, sizeof buffer, "%.6g", x);
  return buffer;
}

/// Every figure as name → value, in the order of the catalogue.
std::vector<std::pair<std::string, std::string>> figures(const actor_snapshot& a) {
  std::vector<std::pair<std::string, std::string>> out;
  auto label = [](const std::string& name, const std::string& value) {
    return value.empty() ? name : name + "{" + value + "}";
  };
  for (const auto* values : {&a.counters, &a.gauges})
    for (const auto& v : *values) {
      const auto* info = find_metric(v.name);
      out.emplace_back(label(v.name, v.label), number(v.value) + (info ? " " + info->unit : ""));
    }
  for (const auto& h : a.histograms) {
    const auto* info = find_metric(h.name);
    auto n = static_cast<double>(h.count());
    out.emplace_back(label(h.name, h.label),
                     number(n) + " times, mean " + number(n > 0 ? h.sum / n : 0)
                       + (info ? " " + info->unit : ""));
  }
  return out;
}

void print_state(const actor_snapshot& a) {
  std::printf("%s  (%s on node %s)\n", a.name.c_str(), a.kind.c_str(), a.node.c_str());
  if (a.waits_for.empty())
    std::printf("  %s for %s\n", a.state.c_str(), short_duration(a.since).c_str());
  else
    std::printf("  waits %s for %s: %s\n", short_duration(a.since).c_str(), a.waits_for.c_str(),
                a.reason.c_str());
  std::printf("  %lld messages in its mailbox; took the last one %s ago\n",
              static_cast<long long>(a.mailbox), short_duration(a.silent).c_str());
}

void print_whole(const actor_snapshot& a) {
  print_state(a);
  std::string last;
  for (const auto& [name, value] : figures(a)) {
    auto metric = name.substr(0, name.find('{'));
    if (const auto* info = find_metric(metric); info != nullptr && metric != last)
      std::printf("\n  %s\n", info->help.c_str());
    last = metric;
    std::printf("    %-58s %s\n", name.c_str(), value.c_str());
  }
}

/// What has changed since the last look.
void print_changes(const actor_snapshot& a, std::map<std::string, std::string>& known) {
  print_state(a);
  for (const auto& [name, value] : figures(a))
    if (auto& before = known[name]; before != value) {
      std::printf("    %-58s %s\n", name.c_str(), value.c_str());
      before = value;
    }
}

/// All actors, one a line.
int list_actors(const inspect_arguments& a) {
  const auto all = introspect(find_run(a.run));
  if (a.json) {
    std::printf("%s\n", all["actors"].dump(2).c_str());
    return 0;
  }
  std::printf("%-30s %-12s  %8s  %s\n", "ACTOR", "KIND", "SINCE", "STATE");
  for (const auto& actor : all["actors"]) {
    const auto s = snapshot_from_json(actor);
    const auto state = s.waits_for.empty() ? s.state : "waits for " + s.waits_for + ": " + s.reason;
    const auto since = short_duration(s.since);
    std::printf("%-30s %-12s  %*s%s  %s\n", full_name(s).c_str(), s.kind.c_str(),
                std::max(0, 8 - static_cast<int>(columns_of(since))), "", since.c_str(), state.c_str());
  }
  return 0;
}

/// `inspect RUN` lists that run's actors.
inspect_arguments without_an_actor(inspect_arguments a) {
  const auto is_run = a.actor.starts_with("http://") || std::filesystem::is_directory(a.actor);
  if (a.run.empty() && is_run)
    a.run = std::exchange(a.actor, {});
  return a;
}

int inspect(const inspect_arguments& a) {
  if (a.actor.empty() && a.follow)
    throw user_error("--follow: which actor? `millrace inspect` lists them");
  if (a.actor.empty())
    return list_actors(a);
  auto run = find_run(a.run);
  std::signal(SIGINT, [](int) { stop_inspect = 1; });
  std::signal(SIGPIPE, SIG_DFL);
  std::map<std::string, std::string> known;
  for (bool first = true;; first = false) {
    nlohmann::json all;
    try {
      all = introspect(run);
    } catch (const user_error&) {
      if (first)
        throw;
      return 0; // the run has ended
    }
    const auto& actor = find_actor(all, a.actor);
    auto snapshot = snapshot_from_json(actor);
    if (a.json)
      std::printf("%s\n", a.follow ? actor.dump().c_str() : actor.dump(2).c_str());
    else if (first)
      print_whole(snapshot);
    else
      print_changes(snapshot, known);
    if (first)
      for (auto& [name, value] : figures(snapshot))
        known[name] = value;
    if (!a.follow)
      return 0;
    std::fflush(stdout);
    ::poll(nullptr, 0, static_cast<int>(a.every_s * 1000));
    if (stop_inspect != 0)
      return 0;
  }
}

} // namespace

void add_inspect_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("inspect", "Show one actor of a running training, all of it; "
                                            "or which there are");
  auto a = std::make_shared<inspect_arguments>();
  cmd->add_option("actor", a->actor, "Its name, or NODE/NAME; without it, all are listed");
  cmd->add_option("run,--run", a->run, "Folder of the run, or http://HOST:PORT (default: the newest run "
                                   "under runs/)");
  cmd->add_flag("--json", a->json, "As JSON; with --follow one object a line");
  cmd->add_flag("--follow", a->follow, "Again and again: what has changed");
  cmd->add_option("--every", a->every_s, "Seconds between two looks")->check(number_between(0.1, 3600));
  cmd->callback([a, &status] { status = inspect(without_an_actor(*a)); });
}

} // namespace millrace
