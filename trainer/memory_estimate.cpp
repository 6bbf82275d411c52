#include "trainer/memory_estimate.hpp"

#include "runtime/error.hpp"
#include "runtime/model/tensor_parallel.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <unistd.h>

namespace millrace::trainer {

namespace {

constexpr std::int64_t fp32 = 4;

std::string millions(std::int64_t n) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f M", static_cast<double>(n) / 1e6);
  return text;
}

/// As published: fp8 is made of bf16 where it arrives.
std::int64_t bytes_per_weight(weight_dtype t) {
  return t == weight_dtype::fp32 ? 4 : t == weight_dtype::int8 ? 1 : 2;
}

/// Two moments, and weights and gradients that cross to the device of `t`, in host memory: pages for
/// the latter are handed out in powers of two where that is a CUDA device.
std::int64_t offloaded_bytes(const trainer_settings& t, std::int64_t of) {
  const auto crossing = t.device == compute_device::cuda
                          ? std::bit_ceil(static_cast<std::uint64_t>(of))
                          : static_cast<std::uint64_t>(of);
  return 2 * of + 2 * static_cast<std::int64_t>(crossing);
}

/// Engines of one kind: where they compute, in which type, and for how many tokens they have room
/// (0: whole sequences, within 4 GiB).
struct engines {
  std::string who;
  std::int64_t count = 0;
  compute_device where = compute_device::cpu;
  weight_dtype type = weight_dtype::fp32;
  std::int64_t cache_tokens = 0;
};

/// Two copies of the weights and the KV cache of each.
void add_engines(std::vector<memory_item>& items, const model::model_config& c, const engines& e,
                 std::int64_t max_batch) {
  const auto device = e.where == compute_device::cuda;
  // Decoders on the host pack any type with what is staged in fp32, and cache in it.
  const std::int64_t weight = !device || e.type == weight_dtype::fp32  ? fp32
                              : e.type == weight_dtype::bf16           ? 2
                                                                       : 1;
  const std::int64_t element = device && e.type != weight_dtype::fp32 ? 2 : fp32;
  const auto per_token = 2 * c.num_hidden_layers * c.key_value_size() * element;
  const auto cache = e.cache_tokens > 0
                       ? e.cache_tokens * per_token
                       : std::min(max_batch * c.max_position_embeddings * per_token,
                                  std::int64_t{4} << 30);
  const auto count = std::to_string(e.count) + " × ";
  items.push_back({e.who + ": weights", count + "(packed and staged)",
                   e.count * 2 * parameters_of(c) * weight, device});
  items.push_back({e.who + ": KV cache", count + std::to_string(cache / per_token) + " tokens",
                   e.count * cache, device});
}

engines generators(const settings& s, std::int64_t count) {
  const auto& g = s.generator;
  return {"generators", count, g.device, g.dtype, g.kv_cache_tokens};
}

/// Engines that only evaluate: the run's own, before and after training; and while it trains the
/// evaluator's, unless another node has that.
engines evaluating(const settings& s) {
  const auto* head = s.cluster.head();
  const auto& nodes = s.cluster.nodes;
  const auto elsewhere = std::any_of(nodes.begin(), nodes.end(), [&](const node_settings& n) {
    return &n != head && n.actors.evaluator > 0;
  });
  engines e{"evaluation", s.run.eval_every > 0 && !elsewhere ? 2 : 1};
  e.cache_tokens = s.generator.kv_cache_tokens;
  const auto generates = head != nullptr ? head->actors.generator > 0 : s.generator.count > 0;
  e.where = generates ? s.generator.device : s.trainer.device;
  e.type = s.generator.dtype == weight_dtype::fp32 ? weight_dtype::fp32 : weight_dtype::bf16;
  return e;
}

} // namespace

model::model_config architecture_shape(const settings& s, std::int64_t vocabulary) {
  const auto& a = s.model.architecture;
  model::model_config c;
  c.vocab_size = vocabulary;
  c.hidden_size = a.hidden;
  c.intermediate_size = a.intermediate;
  c.num_hidden_layers = a.layers;
  c.num_attention_heads = a.heads;
  c.num_key_value_heads = a.kv_heads;
  c.head_dim = a.hidden / a.heads;
  c.max_position_embeddings = a.max_positions;
  c.rms_norm_eps = a.norm_eps;
  c.rope_theta = a.rope_theta;
  c.tie_word_embeddings = a.tie_embeddings;
  return c;
}

std::optional<model::model_config> model_shape(const settings& s) {
  if (!s.model.path.empty()) {
    try {
      return model::read_config(s.model.path);
    } catch (const user_error&) {
      return std::nullopt; // told elsewhere
    }
  }
  const auto& alphabet = s.tokenizer.alphabet;
  return architecture_shape(s, alphabet.empty() ? 100 : static_cast<std::int64_t>(alphabet.size()) + 3);
}

std::int64_t parameters_of(const model::model_config& c, std::int64_t tp) {
  std::int64_t n = 0;
  for (const auto& p : model::parameter_shapes(tp > 1 ? model::local_config(c, 0, tp) : c)) {
    std::int64_t elements = 1;
    for (auto d : p.shape)
      elements *= d;
    n += elements;
  }
  return n;
}

layer_memory layer_bytes(const model::model_config& c, const trainer_settings& t) {
  const auto tp = std::max<std::int64_t>(1, t.parallel.tp);
  const std::int64_t narrow = t.compute == compute_dtype::bf16 ? 2 : fp32;
  auto d = c.hidden_size, q = c.query_size() / tp, kv = c.key_value_size() / tp;
  auto ff = c.intermediate_size / tp, heads = c.num_attention_heads / tp;
  // Two inputs of norms; their results; rotated q, k, v; attention's result and its sums; gate, up and
  // their product. With query and key norms their inputs and results, too.
  auto input = fp32 * (t.parallel.sequence ? (d + tp - 1) / tp : d);
  auto kept = 2 * input + narrow * (2 * d + (q + 2 * kv) + q + 3 * ff) + fp32 * heads
              + (c.qk_norm ? narrow * (q + 2 * kv + q + kv) : 0);
  // The backward pass of the feed-forward layer is the widest place. Kernels compute in fp32, and need
  // what is kept in bf16 as such.
  if (t.device == compute_device::cuda) {
    // And q, k, v in a rectangle, keys and values once for each query head, the rectangle's result; the
    // gate's sigmoid.
    kept += narrow * ((q + 2 * kv) + 3 * q + ff);
    return {kept, narrow * (3 * ff + 2 * d) + fp32 * (q + kv + d), input};
  }
  auto passing = fp32 * (3 * ff + 2 * d) + (narrow < fp32 ? fp32 * 2 * ff + narrow * 3 * ff : 0);
  return {kept, passing, input};
}

/// Weights of other versions and networks, in the bytes of one.
static void add_beside_the_policy(std::vector<memory_item>& items, const settings& s,
                                  std::int64_t weights) {
  const auto& a = s.algorithm;
  const auto device = s.trainer.device == compute_device::cuda;
  if (a.kl.reference != kl_reference::none)
    items.push_back({"trainer: reference", "for the KL penalty", weights, device});
  if (a.critic.kind == critic_kind::model && s.trainer.offload_optimizer) {
    items.push_back({"trainer: critic", "weights and gradients", 2 * weights, device});
    items.push_back({"trainer: critic's optimizer", "moments, weights, gradients",
                     offloaded_bytes(s.trainer, weights)});
  } else if (a.critic.kind == critic_kind::model) {
    items.push_back({"trainer: critic", "weights, gradients and two moments", 4 * weights, device});
  }
  if (a.old_logits == old_logits_source::ewma
      || (exact(a.old_logits) && a.old_logits_fallback == old_logits_fallback::ewma))
    items.push_back({"trainer: averaged weights", "of old log-probs", 2 * weights, device});
  if (!exact(a.old_logits))
    return;
  if (const auto* node = s.cluster.old_logit_node()) { // which has the rest
    items.push_back({"trainer: fp32 for node " + node->name, "two versions, published",
                     2 * weights, device});
    return;
  }
  auto versions = a.old_logits == old_logits_source::interrupt ? std::max(1, a.interrupt.slots)
                  : a.snapshot.versions > 0                    ? a.snapshot.versions
                                                               : s.rollout.eta + 1;
  const auto how = "at most " + std::to_string(versions) + ", within the budget";
  auto there = device ? std::min(versions * weights, a.snapshot.device_bytes) : 0;
  there -= there % weights; // whole versions
  if (there > 0)
    items.push_back({"trainer: kept versions", how, there, device});
  items.push_back({"trainer: kept versions", how,
                   std::min(versions * weights - there, a.snapshot.memory_bytes)});
  items.push_back({"trainer: network for kept versions", "", weights, device});
}

/// The optimiser's state, and what it needs in host memory where it is offloaded.
static memory_item optimizer_memory(const trainer_settings& t, std::int64_t parameters) {
  const auto dp = std::max<std::int64_t>(1, t.parallel.dp);
  const auto sharded = t.parallel.zero1 && dp > 1;
  const auto over = sharded ? ", over " + std::to_string(dp) + " ranks" : std::string();
  const auto of = parameters / (sharded ? dp : 1) * fp32;
  if (t.offload_optimizer)
    return {"trainer: optimizer", "two moments, weights, gradients, offloaded" + over,
            offloaded_bytes(t, of)};
  return {"trainer: optimizer", "two moments" + over, 2 * of, t.device == compute_device::cuda};
}

/// Of a minibatch, or of a warm-up step: no micro-batch is longer.
static std::int64_t tokens_at_a_time(const model::model_config& c, const settings& s) {
  const std::int64_t length = c.max_position_embeddings;
  const std::int64_t answer = std::min<std::int64_t>(s.sampling.max_tokens, length);
  const auto dp = std::max(1, s.trainer.parallel.dp), minibatches = std::max(1, s.trainer.minibatches);
  const std::int64_t rollouts = s.rollout.batch_size / minibatches / dp + s.rollout.group_size;
  const auto prompts = s.trainer.share_prompts
                         ? rollouts / std::max(1, s.rollout.group_size) + 1 : rollouts;
  const auto step = prompts * (length - answer) + rollouts * answer;
  return std::max(step, s.warmup.enabled ? s.warmup.batch_size * length / dp : std::int64_t{0});
}

std::vector<memory_item> trainer_memory(const model::model_config& c, const settings& s) {
  const auto& t = s.trainer;
  const auto device = t.device == compute_device::cuda;
  auto tp = std::max<std::int64_t>(1, t.parallel.tp);
  auto n = parameters_of(c, tp);
  std::vector<memory_item> items;
  items.push_back({"trainer: weights", millions(n) + " parameters, fp32", n * fp32, device});
  if (tp > 1)
    items.push_back({"trainer: whole weights", "rank 0, to publish and save",
                     parameters_of(c) * fp32});
  else if (device)
    items.push_back({"trainer: weights, host", "to publish and save", n * fp32});
  items.push_back({"trainer: gradients", "fp32", n * fp32, device});
  items.push_back(optimizer_memory(t, n));
  add_beside_the_policy(items, s, n * fp32);
  auto tokens = std::min<std::int64_t>(t.micro_batch_tokens, tokens_at_a_time(c, s));
  auto layer = layer_bytes(c, t);
  auto layers = c.num_hidden_layers, d = c.hidden_size;
  auto kept = t.activation_checkpointing ? layers * layer.input + layer.kept : layers * layer.kept;
  items.push_back({"trainer: activations",
                   std::to_string(tokens) + " tokens of a micro-batch"
                     + (t.compute == compute_dtype::bf16 ? ", bf16" : "")
                     + (t.activation_checkpointing ? ", recomputed" : ""),
                   tokens * (kept + layer.passing + 4 * d * fp32), device});
  // The gradient of the head is made whole before it is added to the rest; so is the embedding's.
  items.push_back({"trainer: head", "gradients of embedding and head",
                   2 * (c.vocab_size / tp) * d * fp32, device});
  if (device)
    items.push_back({"trainer: libraries", "CUDA context, cuBLAS, NCCL; about", 1'000'000'000, true});
  if (s.run.checkpoint_every > 0 || s.run.steps > 0)
    items.push_back({"trainer: checkpoint", "copy that is being written", 3 * parameters_of(c) * fp32});
  return items;
}

std::vector<memory_item> run_memory(const model::model_config& c, const settings& s) {
  auto items = trainer_memory(c, s);
  auto n = parameters_of(c);
  items.push_back({"weight sync: published", "two versions", 2 * n * bytes_per_weight(s.generator.dtype)});
  if (s.weight_sync.delta) {
    const auto version = n * bytes_per_weight(s.generator.dtype);
    items.push_back({"weight sync: changes", "beside each of the two versions", version});
    items.push_back({"generators: as published", "to change, weight_sync.delta",
                     s.generator.count * version});
  }
  auto length = c.max_position_embeddings; // prompt and answer
  const auto& g = s.generator;
  add_engines(items, c, generators(s, g.count), g.max_batch);
  add_engines(items, c, evaluating(s), g.max_batch);
  auto rollouts = s.replay_capacity() + s.rollout.max_concurrent;
  auto per_rollout = length * (4 + 4 + 4) + 512;
  items.push_back({"replay and ledger", std::to_string(rollouts) + " rollouts of "
                                          + std::to_string(length) + " tokens",
                   rollouts * per_rollout});
  items.push_back({"libraries", "libtorch and the program itself", 150'000'000});
  return items;
}

std::int64_t generator_memory(const model::model_config& c, const settings& s) {
  std::vector<memory_item> items;
  add_engines(items, c, generators(s, 1), s.generator.max_batch);
  return total(items);
}

std::int64_t total(const std::vector<memory_item>& items) {
  std::int64_t sum = 0;
  for (const auto& i : items)
    sum += i.on_device ? 0 : i.bytes;
  return sum;
}

std::int64_t device_total(const std::vector<memory_item>& items) {
  std::int64_t sum = 0;
  for (const auto& i : items)
    sum += i.on_device ? i.bytes : 0;
  return sum;
}

std::string bytes_text(std::int64_t bytes) {
  char text[32];
  auto b = static_cast<double>(bytes);
  std::snprintf(text, sizeof text, b < 1e9 ? "%.1f MB" : "%.2f GB", b < 1e9 ? b / 1e6 : b / 1e9);
  return text;
}

std::int64_t physical_memory_bytes() {
  return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

} // namespace millrace::trainer
