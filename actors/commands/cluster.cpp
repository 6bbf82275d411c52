// `millrace status`, `scale` and `down`: questions and wishes to a cluster that is up.

#include "actors/cluster_messages.hpp"
#include "actors/commands.hpp"
#include "actors/node_link.hpp"
#include "actors/shell.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/short_forms.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <set>

namespace millrace {

namespace {

/// A line to the hub of the cluster that this configuration describes.
class hub_line {
public:
  hub_line(const std::string& config, const std::vector<std::string>& changes)
    : options_(load_settings(config, changes)), link_(checked()) {
    // A busy host may answer late; where nobody listens, that is said at once.
    std::string why;
    for (int tries = 0; !hub_ && tries < 5 && (tries == 0 || why == "no answer in time"); ++tries)
      hub_ = link_.connect(*options_.cluster.head(), why);
    if (!hub_)
      throw user_error("no cluster answers at " + place() + " (" + why
                       + "); `millrace up " + config + "` starts one");
  }

  /// Asks, and returns the text that comes back.
  template <class... Question>
  std::string ask(Question... question) {
    caf::scoped_actor self{link_.system()};
    std::string out;
    self->request(hub_, within(15), std::move(question)...)
      .receive([&](const std::string& text) { out = text; },
               [&](const caf::error& e) { throw user_error(text(e)); });
    return out;
  }

  /// Nobody is to end or change another training that happens to listen there. Returns what the run
  /// is at.
  std::string prove_it_is_ours() {
    std::set<std::string> here, there;
    for (const auto& n : options_.cluster.nodes)
      here.insert(n.name);
    std::string names;
    const auto status = nlohmann::json::parse(ask(status_atom::value));
    for (const auto& n : status["nodes"]) {
      there.insert(n["name"].get<std::string>());
      names += (names.empty() ? "" : ", ") + n["name"].get<std::string>();
    }
    if (here != there)
      throw user_error("the cluster at " + place() + " is another one: its nodes are " + names
                       + "; give the configuration that it was started with");
    return status["stage"];
  }

  void stop() {
    caf::scoped_actor self{link_.system()};
    self->request(hub_, within(15), stop_atom::value)
      .receive([] {}, [&](const caf::error& e) { throw user_error(text(e)); });
    self->monitor(hub_);
    self->receive([](const caf::down_msg&) {});
  }

private:
  const settings& checked() const {
    if (options_.cluster.nodes.empty())
      throw user_error("cluster.nodes: is missing in this configuration; there is no cluster to ask");
    return options_;
  }
  [[nodiscard]] std::string place() const {
    const auto* head = options_.cluster.head();
    return head->host + ":" + std::to_string(head->port);
  }
  std::string text(const caf::error& e) {
    if (e.category() == caf::atom("system") && e.context().match_elements<std::string>())
      return e.context().get_as<std::string>(0);
    return "the cluster at " + place() + " does not answer: " + text_of(e, link_.system());
  }

  settings options_;
  linked_system link_;
  caf::actor hub_;
};

/// "generator × 2, reward".
std::string actors_text(const nlohmann::json& counts) {
  std::string out;
  for (const auto& [kind, count] : counts.items())
    if (const auto n = count.get<int>(); n > 0)
      out += (out.empty() ? "" : ", ") + kind + (n > 1 ? " × " + std::to_string(n) : "");
  return out;
}

void show_status(const std::string& answer) {
  const auto j = nlohmann::json::parse(answer);
  std::vector<std::array<std::string, 6>> rows{
    {"NODE", "STATE", "HOST", "PROCESS", "UP", "ACTORS"}};
  std::size_t up = 0;
  for (const auto& n : j["nodes"]) {
    const auto pid = n["pid"].get<std::int64_t>();
    const auto seconds = n["up_s"].get<double>();
    up += n["state"] == "up" ? 1 : 0;
    rows.push_back({n["name"], n["state"], n["host"], pid > 0 ? std::to_string(pid) : "–",
                    seconds > 0 ? short_duration(seconds) : "–", actors_text(n["actors"])});
  }
  auto stage = j["stage"].get<std::string>();
  if (stage == "training")
    stage += printed(", step %lld of %lld", j["step"].get<long long>(), j["steps"].get<long long>());
  std::printf("%s; %zu of %zu nodes up\n", stage.c_str(), up, j["nodes"].size());
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      std::size_t width = 0;
      for (const auto& other : rows)
        width = std::max(width, columns_of(other[c]));
      line += "  " + row[c] + (c + 1 < row.size() ? std::string(width - columns_of(row[c]), ' ') : "");
    }
    std::printf("%s\n", line.c_str());
  }
}

/// "generators=4" → kind and count.
std::pair<std::string, std::int64_t> parse_scale(const std::string& text) {
  auto equals = text.find('=');
  auto kind = text.substr(0, equals);
  if (kind.ends_with('s'))
    kind.pop_back();
  char* end = nullptr;
  auto number = equals == std::string::npos ? "" : text.c_str() + equals + 1;
  auto count = std::strtoll(number, &end, 10);
  if (*number == '\0' || *end != '\0' || count < 1 || count > 1024)
    throw user_error("scale " + text + ": expected KIND=COUNT with a count from 1 to 1024, "
                     "for example generators=4");
  return {kind, count};
}

} // namespace

void add_cluster_commands(CLI::App& app, int& status) {
  struct arguments {
    std::string config, what;
    std::vector<std::string> changes;
    bool json = false;
    [[nodiscard]] hub_line line() const { return hub_line(config, changes); }
  };
  auto add = [&](const char* name, const char* help, auto work) {
    auto* cmd = app.add_subcommand(name, help);
    auto a = std::make_shared<arguments>();
    if (std::string_view(name) == "scale")
      cmd->add_option("what", a->what, "generators=N or rewards=N")->required();
    cmd->add_option("config,--config", a->config, "The cluster's configuration file")->required();
    cmd->add_option("--set", a->changes, "path=value, as `millrace up` was given it; may be repeated")
      ->allow_extra_args(false);
    if (std::string_view(name) == "status")
      cmd->add_flag("--json", a->json, "As JSON");
    cmd->callback([a, work, &status] {
      work(*a);
      status = 0;
    });
  };
  add("status", "Show the nodes of a running cluster", [](const arguments& a) {
    auto line = a.line();
    line.prove_it_is_ours();
    auto answer = line.ask(status_atom::value);
    if (a.json)
      std::printf("%s\n", answer.c_str());
    else
      show_status(answer);
  });
  add("scale", "Change how many generators or reward workers run", [](const arguments& a) {
    auto [kind, count] = parse_scale(a.what);
    auto line = a.line();
    line.prove_it_is_ours();
    std::printf("%s\n", line.ask(scale_atom::value, kind, count).c_str());
  });
  add("down", "End a running cluster after the present step, with a checkpoint",
      [](const arguments& a) {
        auto line = a.line();
        const auto stage = line.prove_it_is_ours();
        std::printf("%s\n", stage == "training" ? "ending after the present step, with a checkpoint"
                                                : ("ending; it was " + stage).c_str());
        std::fflush(stdout);
        line.stop();
        std::printf("it is down\n");
      });
}

} // namespace millrace
