#include "actors/cluster_head.hpp"

#include "actors/hub_actor.hpp"
#include "actors/introspector_actor.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/scratch_folder.hpp"

#include <nlohmann/json.hpp>

#include <fstream>

namespace millrace {

namespace {

/// config.json and the tokenizer's files, as a node elsewhere needs them.
std::map<std::string, std::string> model_files(const worker_parts& parts) {
  scratch_folder folder("millrace-model");
  parts.tokens->save(folder.path());
  std::ofstream(folder.path() / "config.json") << model::to_json(parts.model).dump(2);
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    std::ifstream in(entry.path(), std::ios::binary);
    out[entry.path().filename().string()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return out;
}

} // namespace

cluster_head::cluster_head(const settings& options, std::shared_ptr<node_tree> tree,
                           std::function<void()> on_stop, std::function<std::int64_t()> step)
  : link_(options) {
  hub_options o;
  o.options = options;
  o.on_stop = std::move(on_stop);
  o.step = std::move(step);
  o.host = this_host();
  o.events = [](const std::string& text) { log::info("cluster", text); };
  tree->local()->set_node(options.cluster.head()->name);
  introspector_ = link_.system().spawn(introspector_actor, introspector_options{}, std::move(tree),
                                       std::shared_ptr<process_presence>{});
  o.introspector = introspector_;
  hub_ = link_.system().spawn(hub_actor, std::move(o));
  try {
    link_.listen(hub_, *options.cluster.head());
  } catch (...) {
    caf::anon_send_exit(hub_, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(introspector_, caf::exit_reason::user_shutdown);
    throw;
  }
}

cluster_head::~cluster_head() {
  close("it ended");
  caf::anon_send_exit(hub_, caf::exit_reason::user_shutdown);
  caf::anon_send_exit(introspector_, caf::exit_reason::user_shutdown);
}

void cluster_head::stage(const std::string& text) {
  caf::anon_send(hub_, tick_atom::value, text);
}

void cluster_head::open(const worker_parts& parts, const stream_handles& handles,
                        const caf::actor& supervisor) {
  caf::anon_send(hub_, hub_opening{resolved_json(parts.options), model_files(parts),
                                   handles.controller, handles.publisher, handles.recorder,
                                   handles.trainer, supervisor, handles.exact_publisher});
  stage("training");
}

void cluster_head::close(const std::string& how) {
  // Answered when the farewells are on their way: the system may end after that.
  caf::scoped_actor self{link_.system()};
  self->request(hub_, caf::duration{caf::time_unit::seconds, 5}, finished_atom::value, how)
    .receive([] {}, [](const caf::error&) {});
}

} // namespace millrace
