#include "actors/hub_actor.hpp"

#include "actors/node_link.hpp"
#include "actors/shell.hpp"
#include "runtime/config/config.hpp"
#include "trainer/memory_estimate.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <unistd.h>
#include <utility>

namespace millrace {

namespace {

std::string where(const std::string& host, std::int64_t pid) {
  return host + ", process " + std::to_string(pid);
}

std::int64_t count_of(const node_actors_settings& a, const std::string& kind) {
  return kind == "generator" ? a.generator : a.reward;
}

} // namespace

std::string config_differences(const std::string& mine, const std::string& theirs) {
  auto a = nlohmann::json::parse(mine), b = nlohmann::json::parse(theirs);
  for (auto* j : {&a, &b}) {
    (*j)["run"].erase("dir");
    j->erase("log");
    j->erase("monitor");
  }
  // The trainer's node fills it in from the prompts; a run that goes on has it from its folder.
  if (a["tokenizer"].value("alphabet", "").empty() || b["tokenizer"].value("alphabet", "").empty())
    for (auto* j : {&a, &b})
      (*j)["tokenizer"].erase("alphabet");
  auto x = a.flatten(), y = b.flatten();
  std::string out;
  int more = 0;
  auto note = [&](const std::string& pointer, const nlohmann::json* here, const nlohmann::json* there) {
    auto path = pointer.substr(1);
    std::replace(path.begin(), path.end(), '/', '.');
    if (out.size() > 400)
      ++more;
    else
      out += (out.empty() ? "" : "; ") + path + " is " + (here ? here->dump() : "absent")
             + " on the trainer's node and " + (there ? there->dump() : "absent") + " here";
  };
  for (const auto& [path, value] : x.items())
    if (!y.contains(path))
      note(path, &value, nullptr);
    else if (y[path] != value)
      note(path, &value, &y[path]);
  for (const auto& [path, value] : y.items())
    if (!x.contains(path))
      note(path, nullptr, &value);
  return more > 0 ? out + "; and " + std::to_string(more) + " more" : out;
}

caf::behavior hub_state::start(hub_options options) {
  report_exceptions(self_);
  options_ = std::move(options);
  for (const auto& n : options_.options.cluster.nodes)
    members_[n.name] = {.declared = n, .counts = {{"generator", n.actors.generator},
                                                  {"reward", n.actors.reward}}};
  auto& own = members_[options_.options.cluster.head()->name];
  own.state = presence::up;
  own.host = options_.host;
  own.pid = getpid();
  own.since = now_s(self_);
  self_->set_down_handler([this](const caf::down_msg& down) { lost(down); });
  self_->delayed_send(self_, after(options_.remind_s), tick_atom::value);
  return {
    [this](const node_hello& hello) { return admit(hello); },
    [this](tick_atom, const std::string& stage) { stage_ = stage; },
    [this](const hub_opening& opening) {
      opening_ = opening;
      open_ = true;
      members_[options_.options.cluster.head()->name].agent = opening.supervisor;
    },
    [this](node_joined_atom, const std::string& node, const caf::actor& introspector) {
      if (options_.introspector)
        self_->send(options_.introspector, node_joined_atom::value, node, introspector);
    },
    [this](leave_atom, const std::string& node) {
      if (auto m = members_.find(node); m != members_.end() && m->second.state == presence::up) {
        m->second.state = presence::left;
        options_.events("node " + node + " leaves");
      }
    },
    [this](status_atom) { return status(); },
    [this](scale_atom, const std::string& kind, std::int64_t count) { return scale(kind, count); },
    [this](stop_atom) { options_.on_stop(); },
    [this](finished_atom, const std::string& how) {
      over_ = how;
      for (const auto& [name, m] : members_)
        if (m.agent && m.agent != opening_.supervisor)
          self_->send(m.agent, finished_atom::value, how);
      opening_ = {};
    },
    [this](tick_atom) {
      remind();
      self_->delayed_send(self_, after(options_.remind_s), tick_atom::value);
    },
  };
}

std::string hub_state::objection(const node_hello& hello) const {
  if (hello.build != build_identity())
    return "it is of another build (" + hello.build + ") than the trainer's node ("
           + build_identity() + "); install the same version everywhere";
  auto m = members_.find(hello.name);
  if (m == members_.end())
    return "the trainer's configuration has no node of this name";
  if (m->second.declared.actors.trainer > 0)
    return "this is the trainer's node itself";
  if (auto differs = config_differences(resolved_json(options_.options), hello.config);
      !differs.empty())
    return "its configuration differs: " + differs;
  if (m->second.state == presence::up && m->second.agent != hello.agent)
    return "it is up already, on " + where(m->second.host.name, m->second.pid)
           + "; a node runs once. If that one is dead, try again when it was noticed, in "
           + std::to_string(static_cast<int>(options_.options.cluster.lost_after_s)) + " s";
  return {};
}

void hub_state::note(member& m, const node_hello& hello, presence state) {
  if (m.agent != hello.agent)
    self_->monitor(hello.agent);
  m.agent = hello.agent;
  m.host = hello.host;
  m.pid = hello.pid;
  m.since = now_s(self_);
  m.state = state;
}

node_welcome hub_state::admit(const node_hello& hello) {
  node_welcome out;
  if (!over_.empty()) {
    out.kind = welcome_kind::over;
    out.text = over_;
    return out;
  }
  if (auto why = objection(hello); !why.empty()) {
    out.kind = welcome_kind::refused;
    out.text = why;
    auto event = "node " + hello.name + " (" + where(hello.host.name, hello.pid) + ") was refused: " + why;
    if (event != std::exchange(last_refusal_, event)) // it may ask every second
      options_.events(event);
    return out;
  }
  auto& m = members_[hello.name];
  note(m, hello, open_ ? presence::up : presence::waiting);
  if (!open_) {
    out.text = stage_;
    return out;
  }
  options_.events("node " + hello.name + " is up (" + where(hello.host.name, hello.pid) + ")");
  for (const auto& [kind, count] : m.counts) // it starts with those of the configuration
    if (count != count_of(m.declared.actors, kind))
      scale_node(m, kind);
  out.kind = welcome_kind::welcome;
  out.options = opening_.options;
  out.model_files = opening_.model_files;
  out.controller = opening_.controller;
  out.publisher = opening_.publisher;
  out.recorder = opening_.recorder;
  out.trainer = opening_.trainer;
  out.exact_publisher = opening_.exact_publisher;
  return out;
}

void hub_state::lost(const caf::down_msg& down) {
  for (auto& [name, m] : members_) {
    if (m.agent.address() != down.source)
      continue;
    if (m.state == presence::up && over_.empty()) {
      options_.events("node " + name + " is gone (" + text_of(down.reason, self_->system()) + ")"
                      + (m.declared.actors.generator > 0 ? "; its rollouts go on elsewhere" : ""));
      m.state = presence::lost;
    } else if (m.state == presence::waiting) {
      m.state = presence::missing;
    }
    m.agent = nullptr;
  }
}

void hub_state::remind() {
  std::string missing;
  for (const auto& [name, m] : members_)
    if (m.state == presence::missing || m.state == presence::lost)
      missing += (missing.empty() ? "" : ", ") + name + " (" + m.declared.host
                 + (m.state == presence::lost ? ", lost)" : ")");
  auto news = missing != missing_ || now_s(self_) > reminded_at_ + 60;
  if (open_ && over_.empty() && news) {
    if (!missing.empty())
      options_.events("waiting for nodes: " + missing);
    missing_ = missing;
    reminded_at_ = now_s(self_);
  }
}

/// Tells a node how many of a kind it is to run.
void hub_state::scale_node(member& m, const std::string& kind) {
  self_->request(m.agent, within(30), scale_atom::value, kind, m.counts[kind])
    .then([](std::int64_t) {},
          [this, node = m.declared.name, kind](const caf::error& e) {
            options_.events("scaling " + kind + " on node " + node + " failed: "
                            + text_of(e, self_->system()));
          });
}

caf::result<std::string> hub_state::scale(const std::string& kind, std::int64_t count) {
  auto error = [](std::string text) {
    return caf::make_error(caf::sec::invalid_argument, std::move(text));
  };
  if (kind != "generator" && kind != "reward")
    return error("\"" + kind + "\" can't be scaled; generator and reward can");
  if (!open_)
    return error("the run is not up yet: " + stage_);
  if (count < 1)
    return error("at least one " + kind + " must stay");
  std::vector<member*> hosts;
  std::int64_t before = 0;
  for (auto& [name, m] : members_)
    if (m.state == presence::up && m.agent && count_of(m.declared.actors, kind) > 0) {
      hosts.push_back(&m);
      before += m.counts[kind];
    }
  if (hosts.empty())
    return error("no node with a " + kind + " is up");
  auto fewer = [&](member* a, member* b) { return a->counts[kind] < b->counts[kind]; };
  std::map<member*, std::int64_t> was;
  for (auto* h : hosts)
    was[h] = h->counts[kind];
  for (auto n = before; n < count; ++n)
    ++(*std::min_element(hosts.begin(), hosts.end(), fewer))->counts[kind];
  for (auto n = before; n > count; --n)
    --(*std::max_element(hosts.begin(), hosts.end(), fewer))->counts[kind];
  std::string text = kind + ": " + std::to_string(before) + " → " + std::to_string(count);
  for (auto* h : hosts) {
    text += "\n  " + h->declared.name + ": " + std::to_string(was[h]) + " → "
            + std::to_string(h->counts[kind]);
    if (was[h] != h->counts[kind])
      scale_node(*h, kind);
  }
  options_.events("scaled " + text);
  return text + (kind == "generator" && count > before ? shortages() : "");
}

/// Hosts whose generators want more than they have, each with a line: they run all the same.
std::string hub_state::shortages() const {
  const auto& s = options_.options;
  if (s.generator.device != compute_device::cpu || !s.generator.backend.name.empty())
    return {}; // they compute elsewhere
  struct load {
    std::int64_t generators = 0;
    host_facts host;
  };
  std::map<std::string, load> hosts;
  for (const auto& [name, m] : members_)
    if (m.state == presence::up && m.counts.at("generator") > 0) {
      auto& l = hosts[m.host.name];
      l.generators += m.counts.at("generator");
      l.host = m.host;
    }
  const auto shape = trainer::model_shape(s);
  std::string out;
  for (const auto& [name, l] : hosts) {
    const auto threads = l.generators * s.generator.threads;
    const auto at_once = std::max<std::int64_t>(1, l.host.processors / s.generator.threads);
    if (l.host.processors > 0 && threads > l.host.processors)
      out += "\nnote: " + name + " has " + std::to_string(l.host.processors) + " processors for "
             + std::to_string(threads) + " threads of generators: they take turns, and together are "
             + "no faster than " + std::to_string(at_once);
    const auto bytes = shape ? l.generators * trainer::generator_memory(*shape, s) : 0;
    if (l.host.memory_bytes > 0 && bytes > l.host.memory_bytes)
      out += "\nnote: " + name + " has " + trainer::bytes_text(l.host.memory_bytes)
             + " of memory, and its " + std::to_string(l.generators)
             + " generators may need up to " + trainer::bytes_text(bytes)
             + " (generator.kv_cache_tokens bounds the most of it)";
  }
  return out;
}

std::string hub_state::status() const {
  static constexpr const char* words[]{"missing", "waiting", "up", "left", "lost"};
  nlohmann::ordered_json out{{"stage", over_.empty() ? stage_ : over_},
                             {"step", options_.step ? options_.step() : 0},
                             {"steps", options_.options.run.steps},
                             {"nodes", nlohmann::json::array()}};
  for (const auto& [name, m] : members_) {
    nlohmann::ordered_json n{{"name", name},
                             {"state", words[static_cast<int>(m.state)]},
                             {"host", m.host.name.empty() ? m.declared.host : m.host.name},
                             {"pid", m.pid}};
    n["up_s"] = m.state == presence::up && m.since > 0 ? now_s(self_) - m.since : 0.0;
    n["actors"] = {{"trainer", m.declared.actors.trainer},
                   {"generator", m.counts.at("generator")},
                   {"reward", m.counts.at("reward")},
                   {"replay", m.declared.actors.replay},
                   {"evaluator", m.declared.actors.evaluator},
                   {"old_logits", m.declared.actors.old_logits}};
    out["nodes"].push_back(n);
  }
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

caf::behavior hub_actor(caf::stateful_actor<hub_state>* self, hub_options options) {
  return self->state.start(std::move(options));
}

} // namespace millrace
