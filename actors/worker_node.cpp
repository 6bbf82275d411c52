#include "actors/worker_node.hpp"

#include "actors/cluster_messages.hpp"
#include "actors/introspector_actor.hpp"
#include "actors/node_link.hpp"
#include "actors/shell.hpp"
#include "actors/workers.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/model/torch_device.hpp"
#include "runtime/scratch_folder.hpp"

#include <nlohmann/json.hpp>

#include <fstream>
#include <optional>
#include <thread>
#include <unistd.h>

namespace millrace {

namespace {

/// The node's side of the conversation with the trainer's node.
class worker_node {
public:
  worker_node(const settings& options, const node_settings& self,
              const std::function<bool()>& interrupted)
    : options_(options), node_(self), head_(*options.cluster.head()), interrupted_(interrupted),
      link_(options), self_(link_.system()) {
  }

  int execute();

private:
  void find_devices() const;
  enum class ending { over, interrupted, lost };

  /// None: interrupted, or it is over.
  std::optional<node_welcome> join();
  std::optional<node_welcome> ask(const caf::actor& hub, std::string& stage);
  void nap(double seconds);
  ending work(const node_welcome& welcome);
  ending serve(const caf::actor& supervisor);
  void retire(const caf::actor& supervisor, bool politely);
  worker_parts parts_of(const node_welcome& welcome, const std::filesystem::path& folder) const;

  const settings& options_;
  const node_settings& node_;
  const node_settings& head_;
  const std::function<bool()>& interrupted_;
  linked_system link_;
  caf::scoped_actor self_;
  caf::actor hub_;
  bool was_in_ = false; ///< it has been let in before
  bool over_ = false;   ///< the run is, and it was told so outside serve()
};

/// Before it is let in: a node whose device is missing would only be found out after the warm-up.
void worker_node::find_devices() const {
  auto find = [](compute_device device, const char* option) {
    static_cast<void>(model::torch_device(device, 0, option));
  };
  if (node_.actors.generator > 0)
    find(options_.generator.device, "generator.device");
  if (node_.actors.old_logits > 0)
    find(options_.algorithm.dedicated.device, "algorithm.dedicated.device");
}

/// Ends early when interrupted, or told that the run is over.
void worker_node::nap(double seconds) {
  for (auto end = stream_now() + seconds; stream_now() < end && !interrupted_() && !over_;)
    self_->receive(
      [&](finished_atom, const std::string& how) {
        log::info(node_.name, "the run is over: " + how);
        over_ = true;
      },
      caf::after(std::chrono::milliseconds(50)) >> [] {});
}

/// Reaches the hub and is let in; nothing when interrupted, or when the run is over.
std::optional<node_welcome> worker_node::join() {
  auto place = head_.host + ":" + std::to_string(head_.port);
  log::info(node_.name, "looking for the trainer's node " + head_.name + " at " + place);
  auto began = stream_now();
  auto pause = 0.1;
  std::string why, stage;
  while (!interrupted_() && !over_) {
    hub_ = link_.connect(head_, why);
    if (hub_) {
      if (auto welcome = ask(hub_, stage))
        return welcome;
      began = stream_now(); // it was there
      pause = 0.1;
      continue;
    }
    if (stream_now() - began > options_.cluster.join_timeout_s && was_in_)
      throw std::runtime_error("the trainer's node " + head_.name + " did not come back at " + place
                               + " within cluster.join_timeout_s");
    if (stream_now() - began > options_.cluster.join_timeout_s)
      throw user_error("node " + node_.name + ": the trainer's node " + head_.name
                       + " was not reached at " + place + " within cluster.join_timeout_s ("
                       + std::to_string(static_cast<int>(options_.cluster.join_timeout_s))
                       + " s): " + why);
    nap(pause);
    pause = std::min(2.0, pause * 2);
  }
  return {};
}

/// Says hello until the answer is yes; nothing when the hub went away meanwhile.
std::optional<node_welcome> worker_node::ask(const caf::actor& hub, std::string& stage) {
  node_hello hello{node_.name, build_identity(), resolved_json(options_), this_host(), getpid(),
                   caf::actor{self_}};
  auto refusals = 0;
  while (!interrupted_() && !over_) {
    std::optional<node_welcome> reply;
    self_->request(hub, within(10), hello)
      .receive([&](const node_welcome& w) { reply = w; }, [](const caf::error&) {});
    if (!reply)
      return {};
    if (reply->kind == welcome_kind::welcome)
      return reply;
    if (reply->kind == welcome_kind::over) {
      log::info(node_.name, "the run is over: " + reply->text);
      over_ = true;
      return {};
    }
    if (reply->kind == welcome_kind::refused) {
      // A predecessor that was stopped, not killed, is noticed only after a while.
      if (reply->text.find("up already") == std::string::npos
          || ++refusals * 1.0 > 2 * options_.cluster.lost_after_s)
        throw user_error("node " + node_.name + ": " + reply->text);
    } else if (auto now = reply->text.substr(0, reply->text.find(',')); now != stage) {
      stage = now; // how far it has got inside a stage is for others to show
      log::info(node_.name, "the trainer's node is there, but not ready: " + reply->text);
    }
    nap(1);
  }
  return {};
}

worker_parts worker_node::parts_of(const node_welcome& welcome,
                                   const std::filesystem::path& folder) const {
  worker_parts w;
  w.options = parse_settings(welcome.options, "the trainer's configuration");
  w.model = model::read_config(folder);
  w.tokens = model::load_tokenizer(folder);
  w.judge = make_reward(w.options.reward);
  if (node_.actors.evaluator > 0 || !w.options.rollout.environment.name.empty())
    w.prompts = make_prompt_source(w.options.data, w.options.seed);
  w.carrier = make_transport(w.options);
  w.node = node_.name;
  w.evaluator_device = evaluator_device(w.options, node_.actors);
  // What lies on disk goes with this process, unless its place was chosen.
  w.options.algorithm.snapshot.folder = options_.algorithm.snapshot.folder;
  if (w.options.algorithm.snapshot.folder.empty())
    w.options.algorithm.snapshot.folder = folder / "versions";
  return w;
}

worker_node::ending worker_node::work(const node_welcome& welcome) {
  scratch_folder files("millrace-node");
  for (const auto& [name, content] : welcome.model_files)
    std::ofstream(files.path() / std::filesystem::path(name).filename(), std::ios::binary) << content;
  worker_factory workers(parts_of(welcome, files.path()));
  const stream_handles peers{welcome.controller, welcome.publisher, welcome.recorder,
                             welcome.trainer, welcome.exact_publisher};
  supervisor_options o;
  o.max_restarts = options_.supervisor.max_restarts;
  o.more = [&](const std::string& kind, int index) { return workers.more(kind, index, peers); };
  auto children = link_.system().spawn(
    supervisor, std::move(o), workers.all(node_.actors, peers), caf::actor{self_},
    [](const std::string& event) { log::warning("supervisor", event); });
  auto board = snapshot_board::of_process();
  board->set_node(node_.name);
  auto introspector = link_.system().spawn(
    introspector_actor, introspector_options{}, std::make_shared<node_tree>(board),
    std::make_shared<process_presence>(*board, stream_now()));
  self_->send(hub_, node_joined_atom::value, node_.name, introspector);
  self_->monitor(children);
  self_->monitor(hub_);
  auto end = ending::lost;
  try {
    end = serve(children);
  } catch (...) {
    self_->demonitor(hub_);
    self_->send_exit(introspector, caf::exit_reason::user_shutdown);
    retire(children, false);
    throw;
  }
  self_->demonitor(hub_);
  if (end == ending::interrupted)
    self_->send(hub_, leave_atom::value, node_.name);
  retire(children, end == ending::interrupted);
  self_->send_exit(introspector, caf::exit_reason::user_shutdown);
  return end;
}

/// An actor that waits on a thread of its own, and has sent itself a delayed message, keeps that
/// thread until the message comes; and CAF's clock ends before it waits for such threads. Generators'
/// reports and receivers' further tries come within this time.
void let_delayed_messages_come() { std::this_thread::sleep_for(std::chrono::milliseconds(700)); }

/// Waits for what ends this node's work, and passes the hub's wishes on.
worker_node::ending worker_node::serve(const caf::actor& children) {
  log::info(node_.name, "up");
  std::optional<ending> end;
  while (!end) {
    if (interrupted_()) {
      log::info(node_.name, node_.actors.generator > 0 ? "leaving; its rollouts go on elsewhere"
                                                       : "leaving");
      return ending::interrupted;
    }
    self_->receive(
      [&](finished_atom, const std::string& how) {
        log::info(node_.name, "the run is over: " + how);
        end = ending::over;
      },
      [&](scale_atom, const std::string& kind, std::int64_t count) -> caf::result<std::int64_t> {
        self_->send(children, scale_atom::value, kind, count);
        return count;
      },
      [](std::int64_t) {}, // what the supervisor answers to that
      [](const node_welcome&) {}, // an answer that came late
      [&](failed_atom, const std::string& why) { throw std::runtime_error(why); },
      [&](const caf::down_msg& down) {
        if (down.source == children.address())
          throw std::runtime_error("the supervisor died: "
                                   + text_of(down.reason, link_.system()));
        log::warning(node_.name, "the trainer's node is gone");
        end = ending::lost;
      },
      caf::after(std::chrono::milliseconds(100)) >> [] {});
  }
  return *end;
}

/// Ends all actors here; `politely`: generators hand their work back first.
void worker_node::retire(const caf::actor& children, bool politely) {
  self_->demonitor(children);
  if (politely) {
    self_->send(children, scale_atom::value, std::string("generator"), std::int64_t{0});
    self_->receive([](std::int64_t) {}, caf::after(std::chrono::seconds(2)) >> [] {});
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  self_->send(children, drain_atom::value);
  self_->wait_for(children);
}

int worker_node::execute() {
  find_devices();
  for (;;) {
    auto welcome = join();
    if (!welcome)
      return over_ ? 0 : 130;
    was_in_ = true;
    switch (work(*welcome)) {
      case ending::over: let_delayed_messages_come(); return 0;
      case ending::interrupted: let_delayed_messages_come(); return 130;
      case ending::lost: hub_ = nullptr;
    }
  }
}

} // namespace

int run_worker_node(const settings& options, const node_settings& self,
                    const std::function<bool()>& interrupted) {
  return worker_node(options, self, interrupted).execute();
}

} // namespace millrace
