// What no single option shows. Each rule says which option to change, and why.

#include "runtime/config/config.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <utility>

namespace millrace {
namespace {

using texts = std::vector<std::string>;

std::string num(double x) {
  auto text = std::to_string(x);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.'))
    text.pop_back();
  return text;
}

void check_model(const settings& s, texts& out) {
  if (!s.model.path.empty())
    return; // the folder's own config.json counts, and is checked when it is loaded
  const auto& a = s.model.architecture;
  const std::string at = "model.architecture.";
  if (a.hidden % a.heads != 0)
    out.push_back(at + "heads: found " + num(a.heads) + ", expected a divisor of hidden, "
                  + num(a.hidden));
  else if (a.hidden / a.heads % 2 != 0)
    out.push_back(at + "heads: found " + num(a.heads) + ", which makes heads of odd width "
                  + num(a.hidden / a.heads) + "; rotary embeddings need an even one");
  if (a.heads % a.kv_heads != 0)
    out.push_back(at + "kv_heads: found " + num(a.kv_heads) + ", expected a divisor of heads, "
                  + num(a.heads));
  if (s.sampling.max_tokens >= a.max_positions)
    out.push_back("sampling.max_tokens: found " + num(s.sampling.max_tokens)
                  + ", expected less than " + at + "max_positions, " + num(a.max_positions)
                  + ": the prompt needs room too");
}

void check_data(const settings& s, texts& out) {
  const auto& d = s.data;
  if (d.source == "jsonl" && d.file.empty())
    out.push_back("data.file: is missing; data.source \"jsonl\" reads it");
  if (d.source == "arithmetic" && !d.file.empty())
    out.push_back("data.file: found \"" + d.file + "\", but data.source \"arithmetic\" reads no "
                  "file; set data.source to \"jsonl\"");
  if (d.prompt_template.find("{question}") == std::string::npos)
    out.push_back("data.template: has no {question}, so that every prompt would be the same");
  if (d.held_out == 0)
    out.push_back("data.held_out: found 0, but a run is evaluated before and after; expected a count "
                  "from 1, or a fraction between 0 and 1");
  if (d.held_out >= 1 && d.held_out != std::trunc(d.held_out))
    out.push_back("data.held_out: found " + num(d.held_out)
                  + ", expected a whole number of prompts, or a fraction below 1");
  if (d.arithmetic.operations.empty()
      || d.arithmetic.operations.find_first_not_of("+-*") != std::string::npos)
    out.push_back("data.arithmetic.operations: found \"" + d.arithmetic.operations
                  + "\", expected some of + - *");
}

void check_stream(const settings& s, texts& out) {
  const auto& r = s.rollout;
  if (r.batch_size % r.group_size != 0)
    out.push_back("rollout.batch_size: found " + num(r.batch_size)
                  + ", expected a multiple of rollout.group_size, " + num(r.group_size));
  const auto least = (std::int64_t(r.eta) + 1) * r.batch_size;
  if (s.replay.capacity > 0 && s.replay.capacity < least)
    out.push_back("replay.capacity: found " + num(s.replay.capacity) + ", expected at least "
                  "(rollout.eta + 1)·rollout.batch_size, " + num(double(least)) + ", or 0 for that");
  if (least > 100'000'000)
    out.push_back("rollout.eta: with rollout.batch_size " + num(r.batch_size) + " it admits "
                  + num(double(least)) + " rollouts, expected at most 100000000");
  if (s.sampling.min_tokens > s.sampling.max_tokens)
    out.push_back("sampling.min_tokens: found " + num(s.sampling.min_tokens)
                  + ", expected at most sampling.max_tokens, " + num(s.sampling.max_tokens));
  if (s.generator.kv_cache_tokens > 0 && s.generator.kv_cache_tokens <= s.sampling.max_tokens)
    out.push_back("generator.kv_cache_tokens: found " + num(double(s.generator.kv_cache_tokens))
                  + ", which doesn't hold one sequence; expected more than sampling.max_tokens, "
                  + num(s.sampling.max_tokens) + ", or 0");
  std::int64_t generators = s.cluster.nodes.empty() ? s.generator.count : 0;
  for (const auto& n : s.cluster.nodes)
    generators += n.actors.generator;
  if (s.generator.backend.name == "openai" && generators > 1)
    out.push_back("generator.backend: " + num(double(generators)) + " generators share one server, "
                  "which has one version of the weights at a time: what the others sampled from "
                  "would not be known. Use one generator; the server makes batches by itself");
  if (s.deterministic && r.eta > 0)
    out.push_back("deterministic: found true with rollout.eta " + num(r.eta) + "; which version "
                  "samples a token then depends on timing, so it needs rollout.eta 0");
}

void check_training(const settings& s, texts& out) {
  if (s.reward.correct <= s.reward.wrong)
    out.push_back("reward.correct: found " + num(s.reward.correct)
                  + ", expected more than reward.wrong, " + num(s.reward.wrong));
  const auto& world = s.rollout.environment.name;
  if (!world.empty() && s.reward.kind != "environment" && s.reward.kind != "weighted")
    out.push_back("reward.kind: found \"" + s.reward.kind + "\" with rollout.environment.name \""
                  + world + "\", which gives the verdict itself; set it to \"environment\"");
  if (world.empty() && s.reward.kind == "environment")
    out.push_back("rollout.environment.name: is missing; reward.kind \"environment\" takes its verdict");
  const auto& kl = s.algorithm.kl;
  if (kl.coefficient > 0 && kl.reference == kl_reference::none)
    out.push_back("algorithm.kl.coefficient: found " + num(kl.coefficient)
                  + " with no reference; set algorithm.kl.reference to \"initial\"");
  const auto& kept = s.algorithm.snapshot;
  if ((s.algorithm.old_logits == old_logits_source::snapshot
       || s.algorithm.old_logits == old_logits_source::dedicated)
      && kept.versions != 1 && kept.memory_bytes == 0 && kept.disk_bytes == 0
      && kept.device_bytes == 0)
    out.push_back("algorithm.snapshot: memory_bytes, disk_bytes and device_bytes are all 0, so that no "
                  "version can be kept; give one of them room for some");
  if (s.trainer.minibatches > s.rollout.batch_size)
    out.push_back("trainer.minibatches: found " + num(s.trainer.minibatches)
                  + ", expected at most rollout.batch_size, " + num(s.rollout.batch_size));
  const auto& ranks = s.trainer.parallel;
  if (s.model.path.empty() && ranks.tp > 1)
    for (auto [what, n] : {std::pair{"heads", s.model.architecture.heads},
                           {"kv_heads", s.model.architecture.kv_heads},
                           {"intermediate", s.model.architecture.intermediate}})
      if (n % ranks.tp != 0)
        out.push_back("trainer.parallel.tp: found " + num(ranks.tp)
                      + ", expected a divisor of model.architecture." + what + ", " + num(n));
  if (ranks.tp > 1 && s.algorithm.old_logits == old_logits_source::dedicated)
    out.push_back("algorithm.old_logits: the old-logit actor has no part in the ranks that a replica is "
                  "split over; with trainer.parallel.tp above 1 use snapshot or interrupt");
  if (ranks.sequence && ranks.tp == 1)
    out.push_back("trainer.parallel.sequence: found true with trainer.parallel.tp 1; there is no other "
                  "rank to share the tokens of a replica with");
  if (ranks.zero1 && ranks.dp == 1)
    out.push_back("trainer.parallel.zero1: found true with trainer.parallel.dp 1; there is no other "
                  "rank to hold a part of the optimiser's state");
  if (s.eval.samples > 1 && s.eval.temperature == 0)
    out.push_back("eval.samples: found " + num(s.eval.samples)
                  + " with eval.temperature 0, where they would all be the same");
}

/// What a device can't do, or only with another setting.
void check_devices(const settings& s, texts& out) {
  const auto on_cuda = [](compute_device d) { return d == compute_device::cuda; };
  if (s.generator.dtype == weight_dtype::fp8 && !on_cuda(s.generator.device))
    out.push_back("generator.dtype: found \"fp8\" with generator.device \"cpu\"; the CPU's 8 bits are "
                  "\"int8\"");
  if (s.generator.dtype == weight_dtype::int8 && on_cuda(s.generator.device))
    out.push_back("generator.dtype: found \"int8\" with generator.device \"cuda\", whose 8 bits are "
                  "\"fp8\"");
  if (on_cuda(s.generator.device) && !s.generator.backend.name.empty())
    out.push_back("generator.device: found \"cuda\" with generator.backend \"" + s.generator.backend.name
                  + "\", which computes where it chooses and takes weights in host memory; set \"cpu\"");
  if (on_cuda(s.generator.device) && s.weight_sync.delta)
    out.push_back("weight_sync.delta: found true with generator.device \"cuda\"; changes are put "
                  "together in host memory only");
  if (s.deterministic && on_cuda(s.generator.device))
    out.push_back("deterministic: found true with generator.device \"cuda\", where a number's last bits "
                  "depend on what is computed beside it; set \"cpu\"");
  if (s.trainer.offload_optimizer && !on_cuda(s.trainer.device))
    out.push_back("trainer.offload_optimizer: found true with trainer.device \"cpu\", where the "
                  "optimiser's state is in host memory already");
}

void check_node(const settings& s, std::size_t i, texts& out) {
  const auto& n = s.cluster.nodes[i];
  const auto at = "cluster.nodes[" + std::to_string(i) + "].";
  const std::string letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  if (n.name.empty() || n.name.find_first_not_of(letters + "-.") != std::string::npos)
    out.push_back(at + "name: found " + nlohmann::json(n.name).dump()
                  + ", expected letters, digits, - _ .");
  for (std::size_t j = 0; j < i; ++j)
    if (s.cluster.nodes[j].name == n.name)
      out.push_back(at + "name: \"" + n.name + "\" is taken by cluster.nodes[" + std::to_string(j)
                    + "]");
  if (n.actors.trainer > 0 && n.port == 0)
    out.push_back(at + "port: is missing; the trainer's node must listen on one");
  if (n.host.empty())
    out.push_back(at + "host: is empty, expected a host's name or address");
  else if (n.actors.trainer > 0 && !is_loopback(n.host) && s.cluster.tls.ca.empty()
      && !s.cluster.insecure)
    out.push_back(at + "host: found \"" + n.host + "\", which others reach, with no certificates; "
                  "set cluster.tls (`millrace certs` makes them), or cluster.insecure to true where "
                  "the network is yours alone");
  for (const auto& [name, value] : n.env.items())
    if (name.empty() || name.find_first_not_of(letters) != std::string::npos)
      out.push_back(at + "env: found the name " + nlohmann::json(name).dump()
                    + ", expected letters, digits and _");
    else if (!value.is_string())
      out.push_back(at + "env." + name + ": expected text");
}

void check_weight_sync(const settings& s, texts& out) {
  if (s.weight_sync.transport == sync_transport::ucx
      && (',' + s.weight_sync.protocols + ',').find(",tcp,") != std::string::npos)
    out.push_back("weight_sync.protocols: found tcp with transport \"ucx\", but UCX's own TCP ends the "
                  "trainer when a generator dies that is fetching weights; set weight_sync.transport to "
                  "\"auto\", which takes sockets instead");
}

void check_cluster(const settings& s, texts& out) {
  const auto& c = s.cluster;
  if (c.nodes.empty())
    return;
  node_actors_settings sum;
  for (std::size_t i = 0; i < c.nodes.size(); ++i) {
    check_node(s, i, out);
    const auto& a = c.nodes[i].actors;
    sum.trainer += a.trainer;
    sum.generator += a.generator;
    sum.reward += a.reward;
    sum.replay += a.replay;
    sum.evaluator += a.evaluator;
    sum.old_logits += a.old_logits;
  }
  auto expect = [&](const char* kind, int count, bool fits, const char* expected) {
    if (!fits)
      out.push_back("cluster.nodes: " + std::to_string(count) + " of the nodes' actors are \"" + kind
                    + "\", expected " + expected);
  };
  expect("trainer", sum.trainer, sum.trainer == 1, "exactly one");
  expect("generator", sum.generator, sum.generator >= 1, "at least one");
  expect("reward", sum.reward, sum.reward >= 1, "at least one");
  expect("replay", sum.replay, sum.replay == 1, "exactly one");
  expect("evaluator", sum.evaluator, sum.evaluator <= 1, "at most one");
  expect("old_logits", sum.old_logits, sum.old_logits <= 1, "at most one");
  if (sum.old_logits > 0 && s.algorithm.old_logits != old_logits_source::dedicated)
    out.push_back("cluster.nodes: an actor is \"old_logits\", which algorithm.old_logits \"dedicated\" "
                  "alone has a use for");
  const auto& t = c.tls;
  if (const auto given = !t.certificate.empty() + !t.key.empty() + !t.ca.empty();
      given != 0 && given != 3)
    out.push_back("cluster.tls: expected all three of certificate, key and ca, or none: with less "
                  "the other end of a link would not be proven");
  if (c.lost_after_s < 2 * c.heartbeat_s)
    out.push_back("cluster.lost_after_s: found " + num(c.lost_after_s)
                  + ", expected at least twice cluster.heartbeat_s, " + num(c.heartbeat_s));
  if (s.weight_sync.transport == sync_transport::local)
    for (const auto& n : c.nodes)
      if (n.actors.trainer == 0
          && n.actors.generator + n.actors.evaluator + n.actors.old_logits > 0)
        out.push_back("weight_sync.transport: found \"local\", but node \"" + n.name
                      + "\" is another process; set it to \"auto\" or \"ucx\"");
}

} // namespace

std::vector<std::string> contradictions(const settings& s) {
  texts out;
  check_model(s, out);
  check_data(s, out);
  check_stream(s, out);
  check_training(s, out);
  check_devices(s, out);
  check_weight_sync(s, out);
  check_cluster(s, out);
  return out;
}

std::vector<std::string> remarks(const settings& s) {
  texts out;
  if (s.algorithm.old_logits == old_logits_source::recompute && s.trainer.minibatches == 1
      && s.trainer.epochs == 1)
    out.push_back("trainer.minibatches: with one optimiser step per batch, the policy still equals "
                  "the recomputed proximal policy, so that every ratio between them is 1 and "
                  "nothing is ever clipped; 2 or more minibatches or epochs give clipping a meaning");
  const auto& a = s.algorithm;
  if (exact(a.old_logits) && a.old_logits != old_logits_source::interrupt
      && a.snapshot.versions > 0 && a.snapshot.versions < s.rollout.eta + 1)
    out.push_back("algorithm.snapshot.versions: " + num(a.snapshot.versions)
                  + " are kept, but tokens may come from " + num(s.rollout.eta + 1)
                  + " (rollout.eta + 1); older ones are served by algorithm.old_logits_fallback");
  if (a.critic.kind != critic_kind::none && a.advantage.name != "gae"
      && a.advantage.name != "vtrace")
    out.push_back("algorithm.critic.kind: algorithm.advantage \"" + a.advantage.name
                  + "\" never looks at a critic's values, and gives it nothing to learn from; gae and "
                    "vtrace do");
  if (s.weight_sync.delta && s.generator.dtype == weight_dtype::fp32)
    out.push_back("weight_sync.delta: generator.dtype is \"fp32\", of which a step changes nearly every "
                  "element: comparing costs more than it saves, unless most weights are frozen");
  if (!s.model.path.empty() && s.trainer.lr > 1e-4)
    out.push_back("trainer.lr: " + num(s.trainer.lr) + " is a rate for a small model made from "
                  "scratch; if model.path is a pre-trained language model, it forgets what it knows "
                  "at that, and takes 1e-6 to 1e-5");
  if (s.trainer.micro_batch_tokens <= s.sampling.max_tokens)
    out.push_back("trainer.micro_batch_tokens: " + num(s.trainer.micro_batch_tokens)
                  + " are no room for a prompt with an answer of sampling.max_tokens, "
                  + num(s.sampling.max_tokens) + "; the run ends at the first that is too long");
  if (s.rollout.group_size == 1 && s.algorithm.advantage.name == "grpo")
    out.push_back("rollout.group_size: a group of one has no siblings to compare with, so that "
                  "every advantage is 0");
  if (s.rollout.filter_zero_variance && s.rollout.group_size == 1)
    out.push_back("rollout.filter_zero_variance: with rollout.group_size 1 it filters everything");
  if (s.sampling.temperature == 0 && s.rollout.group_size > 1)
    out.push_back("sampling.temperature: at 0 all answers of a group are the same, and every "
                  "advantage is 0");
  const auto& m = s.monitor;
  if (m.enabled && m.token.empty() && m.host != "127.0.0.1" && m.host != "localhost" && m.host != "::1")
    out.push_back("monitor.token: monitor.host is \"" + m.host + "\", so that whoever reaches this "
                  "machine can watch the run; a token keeps strangers out");
  return out;
}

} // namespace millrace
