#include "actors/workers.hpp"

#include "actors/engine_device.hpp"
#include "actors/evaluation.hpp"
#include "actors/evaluator_actor.hpp"
#include "actors/generator_actor.hpp"
#include "actors/old_logit_actor.hpp"
#include "actors/plugin_actor.hpp"
#include "actors/plugin_registry.hpp"
#include "actors/replay_actor.hpp"
#include "actors/reward_actor.hpp"
#include "actors/staging_intake.hpp"
#include "rollout/generator_plugins.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "trainer/old_logit_versions.hpp"
#include "weightsync/choose_transport.hpp"
#include "weightsync/local_transport.hpp"
#include "weightsync/ucx_transport.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <unistd.h>

namespace millrace {

double stream_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::shared_ptr<weightsync::transport> make_transport(const settings& s) {
  using enum sync_transport;
  auto chosen = s.weight_sync.transport;
  if (chosen == local || (chosen == automatic && s.cluster.nodes.size() < 2))
    return std::make_shared<weightsync::local_transport>();
  if (chosen == automatic || chosen == tcp) {
    weightsync::ways allowed;
    allowed.protocols = chosen == tcp ? "tcp" : s.weight_sync.protocols;
    allowed.devices = s.weight_sync.devices;
    if (const auto* head = s.cluster.head()) // the one that publishes
      allowed.hosts = {head->host};
    return weightsync::choose_transport(allowed);
  }
  weightsync::ucx_options o;
  o.transports = s.weight_sync.protocols;
  if (o.transports.empty() && std::getenv("UCX_TLS") == nullptr)
    o.transports = weightsync::without_tcp;
  o.devices = s.weight_sync.devices;
  return std::make_shared<weightsync::ucx_transport>(o);
}

compute_device evaluator_device(const settings& s, const node_actors_settings& here) {
  return here.generator > 0 ? s.generator.device
         : here.trainer > 0 ? s.trainer.device : compute_device::cpu;
}

bool receivers_on_gpus(const settings& s) {
  const auto& nodes = s.cluster.nodes;
  auto on_cpu = [&s](const node_settings& n) {
    return n.actors.evaluator > 0 && evaluator_device(s, n.actors) == compute_device::cpu;
  };
  return s.generator.device == compute_device::cuda
         && std::none_of(nodes.begin(), nodes.end(), on_cpu);
}

std::string worker_factory::name_of(const std::string& kind, int index) const {
  auto name = kind + "-" + std::to_string(index);
  return parts_.node.empty() ? name : parts_.node + "/" + name;
}

/// Leases are not inherited: every life of a receiver has a name of its own.
std::string worker_factory::fresh_receiver_name(const std::string& name) {
  return name + "#" + std::to_string(getpid()) + "." + std::to_string(++lives_);
}

child_spec worker_factory::generator(int index, const stream_handles& peers) {
  auto name = name_of("generator", index);
  auto spawn = [this, name, index, &peers](caf::event_based_actor* parent) -> caf::actor {
    const auto& s = parts_.options;
    generation::engine_options e;
    e.max_batch = s.generator.max_batch;
    e.kv_cache_tokens = s.generator.kv_cache_tokens;
    e.threads = s.generator.threads;
    e.prefill_tokens = s.generator.prefill_chunk;
    e.kv = s.generator.kv;
    e.weights = type_of(s.generator.dtype);
    place_engine(e, s.generator.device, index, "generator.device");
    e.clock = stream_now;
    std::shared_ptr<generation::engine> engine
      = generation::make_engine(s, e, parts_.model, parts_.tokens, parts_.prompts);
    auto intake = std::make_shared<staging_intake>(
      parts_.carrier, engine->staging(),
      staging_options{s.weight_sync.timeout_s, s.weight_sync.retries + 1, s.weight_sync.delta},
      [engine](version) { engine->prepare(); });
    generator_options o;
    o.name = name;
    o.capacity = 2 * std::int64_t{s.generator.max_batch};
    o.progress_every_tokens = s.rollout.progress_every_tokens;
    o.progress_at_swap = s.algorithm.old_logits == old_logits_source::interrupt;
    o.receiver.name = fresh_receiver_name(name);
    return parent->spawn<caf::detached>(
      generator_actor, o, engine, intake,
      generator_peers{peers.controller, peers.publisher, peers.recorder});
  };
  return {name, "generator", spawn};
}

child_spec worker_factory::reward(int index, const stream_handles& peers) {
  auto name = name_of("reward", index);
  return {name, "reward", [this, name, &peers](caf::event_based_actor* parent) {
            return parent->spawn<caf::detached>(reward_actor, name, parts_.judge, peers.controller);
          }};
}

child_spec worker_factory::replay(const stream_handles& peers) {
  const auto& s = parts_.options;
  replay_actor_options o;
  o.buffer.capacity = s.replay_capacity();
  o.buffer.batch_size = s.rollout.batch_size;
  o.buffer.group_size = s.rollout.group_size;
  o.buffer.eta = s.rollout.eta;
  o.buffer.over_bound = s.rollout.over_bound;
  o.wait_timeout_s = s.rollout.request_timeout_s;
  return {parts_.node.empty() ? "replay" : parts_.node + "/replay", "replay",
          [o, &peers](caf::event_based_actor* parent) {
            return parent->spawn(replay_actor, o, peers.controller, peers.trainer);
          }};
}

child_spec worker_factory::evaluator(const stream_handles& peers) {
  auto name = parts_.node.empty() ? std::string("evaluator") : parts_.node + "/evaluator";
  auto spawn = [this, name, &peers](caf::event_based_actor* parent) {
    const auto& s = parts_.options;
    auto own = s;
    own.generator.device = parts_.evaluator_device;
    auto work = std::make_shared<evaluation>(own, parts_.model, parts_.tokens, *parts_.prompts,
                                             parts_.judge);
    auto engine = work->engine();
    auto intake = std::make_shared<staging_intake>(
      parts_.carrier, engine->staging(),
      staging_options{s.weight_sync.timeout_s, s.weight_sync.retries + 1},
      [engine](version) { engine->prepare(); });
    receiver_options o;
    o.name = fresh_receiver_name(name);
    o.wanted = [every = s.run.eval_every, last = s.run.steps](version v) {
      return v.value > 0 && v.value < last && v.value % every == 0;
    };
    return parent->spawn<caf::detached>(evaluator_actor, work, intake, o, peers.publisher,
                                        peers.recorder);
  };
  return {name, "evaluator", spawn};
}

child_spec worker_factory::old_logits(const stream_handles& peers) {
  auto name = parts_.node.empty() ? std::string("old_logits") : parts_.node + "/old_logits";
  auto spawn = [this, name, &peers](caf::event_based_actor* parent) {
    const auto& s = parts_.options;
    auto versions = std::make_shared<trainer::old_logit_versions>(s, parts_.model);
    auto intake = std::make_shared<staging_intake>(
      parts_.carrier, versions->staging(),
      staging_options{s.weight_sync.timeout_s, s.weight_sync.retries + 1},
      [versions, name, told = false](version v) mutable {
        if (!versions->keep(v) && !std::exchange(told, true))
          log::warning(name, versions->given_up());
      });
    receiver_options receiver;
    receiver.name = fresh_receiver_name(name);
    return parent->spawn<caf::detached>(
      old_logit_actor,
      old_logit_options{name, s.algorithm.dedicated.wait_s,
                        old_logit_intake{intake, receiver, peers.exact_publisher}},
      versions->worker(), peers.controller, peers.trainer);
  };
  return {name, "old_logits", spawn};
}

std::vector<child_spec> worker_factory::plugin_actors(const stream_handles& peers) {
  std::vector<child_spec> out;
  for (std::size_t i = 0; i < parts_.options.actors.size(); ++i) {
    const auto& a = parts_.options.actors[i];
    plugin_actor_options o;
    o.name = name_of(a.kind, static_cast<int>(i));
    o.where = "actors[" + std::to_string(i) + "].params";
    o.params = a.params;
    o.run_directory = parts_.run_directory;
    auto made_by = actor_kinds().get(a.kind, "actors[" + std::to_string(i) + "].kind");
    out.push_back({o.name, a.kind, [o, made_by, &peers](caf::event_based_actor* parent) {
                     return parent->spawn<caf::detached>(plugin_actor, made_by, o, peers.controller,
                                                         peers.recorder);
                   }});
  }
  return out;
}

child_spec worker_factory::more(const std::string& kind, int index, const stream_handles& peers) {
  ensure(kind == "generator" || kind == "reward", [&] { return kind + " can't be scaled"; });
  return kind == "generator" ? generator(index, peers) : reward(index, peers);
}

std::vector<child_spec> worker_factory::all(const node_actors_settings& counts,
                                            const stream_handles& peers) {
  std::vector<child_spec> out;
  for (int i = 0; i < counts.replay; ++i)
    out.push_back(replay(peers));
  for (int i = 0; i < counts.reward; ++i)
    out.push_back(reward(i, peers));
  for (int i = 0; i < counts.generator; ++i)
    out.push_back(generator(i, peers));
  if (counts.evaluator > 0 && parts_.options.run.eval_every > 0)
    out.push_back(evaluator(peers));
  if (counts.old_logits > 0)
    out.push_back(old_logits(peers));
  return out;
}

} // namespace millrace
