// Generation on CPU: a model of SmolLM2-135M's shape, or the folder given by --model.

#include "bench/benchmarks.hpp"

#include "bench/instruments.hpp"
#include "rollout/engine.hpp"
#include "runtime/error.hpp"
#include "runtime/model/checkpoint.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace millrace::bench {
namespace {

using generation::engine;
using generation::engine_options;

constexpr std::int32_t threads = 2;

model::model_config smollm2_shape() {
  model::model_config c;
  c.vocab_size = 49152;
  c.hidden_size = 576;
  c.intermediate_size = 1536;
  c.num_hidden_layers = 30;
  c.num_attention_heads = 9;
  c.num_key_value_heads = 3;
  c.head_dim = 64;
  c.max_position_embeddings = 8192;
  c.rope_theta = 100000;
  c.rms_norm_eps = 1e-5;
  c.tie_word_embeddings = true;
  return c;
}

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

/// What is generated with.
struct subject {
  std::string folder; ///< empty: random weights
  model::model_config config;

  explicit subject(const options& how)
      : folder(how.model), config(folder.empty() ? smollm2_shape() : model::read_config(folder)) {
    if (folder.empty() && how.quick)
      config.num_hidden_layers = 4;
  }

  void fill(const std::vector<tensor_view>& staging) const {
    if (!folder.empty()) {
      model::load_checkpoint(folder, staging);
      return;
    }
    std::uint64_t state = 88172645463325252U;
    const auto uniform = [&] { // xorshift: 135 million good ones would take longer than the rest
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      return static_cast<float>(static_cast<std::int32_t>(state >> 40) - (1 << 23)) * 0x1.0p-23F;
    };
    for (const auto& v : staging) {
      const auto n = v.elements();
      const bool scale = v.name.ends_with("_scale");
      for (std::int64_t i = 0; i < n; ++i) {
        const float x = scale ? 0.04F / 127 : v.shape.size() == 1 ? 1.0F : 0.04F * uniform();
        if (v.type == dtype::f32)
          std::memcpy(v.data + i * 4, &x, 4);
        else if (v.type == dtype::bf16)
          std::memcpy(v.data + i * 2, reinterpret_cast<const std::byte*>(&x) + 2, 2);
        else
          v.data[i] = static_cast<std::byte>(static_cast<std::int8_t>(127 * x / 0.04F));
      }
    }
  }

  std::unique_ptr<engine> start(engine_options o) const {
    o.threads = threads;
    o.stop_tokens = {-1};
    o.max_context = std::min<std::int32_t>(o.max_context ? o.max_context : 1024,
                                           static_cast<std::int32_t>(config.max_position_embeddings));
    auto e = generation::make_engine(o, config, nullptr);
    fill(e->staging());
    e->install({0});
    return e;
  }

  generation_task task(std::int64_t prompt, std::int32_t sample, std::int32_t length,
                       std::int32_t answer) const {
    generation_task t;
    auto& r = t.so_far;
    r.id = {prompt, sample};
    r.prompt_id = prompt;
    r.prompt_length = length;
    for (std::int32_t i = 0; i < length; ++i)
      r.tokens.push_back(static_cast<std::int32_t>((1000 + 7919 * (prompt + 1) + 104729L * i)
                                                   % config.vocab_size));
    r.behaviour_logp.assign(r.tokens.size(), 0);
    r.versions.assign(r.tokens.size(), -1);
    t.sampling.max_tokens = answer;
    t.sampling.ignore_eos = true;
    return t;
  }
};

void end_all(engine& e) { e.drain(); }

/// Seconds of each decode step of `batch` sequences, prompts excluded.
std::vector<double> decode_steps(engine& e, const subject& s, std::int32_t batch, int steps) {
  for (std::int32_t i = 0; i < batch; ++i)
    e.submit(s.task(i, 0, 32, 4096));
  while (e.statistics().decoded_rows == 0 || e.waiting() > 0)
    e.step();
  e.step(); // all have their prompts now
  std::vector<double> taken;
  for (int i = 0; i < steps; ++i)
    taken.push_back(seconds([&] { e.step(); }));
  end_all(e);
  return taken;
}

const char* name_of(dtype t) { return t == dtype::f32 ? "fp32" : t == dtype::bf16 ? "bf16" : "int8"; }

void compare_precisions(const subject& s, const options& how, measurements& out) {
  const std::vector<std::int32_t> batches{1, 8, 32};
  const std::vector<dtype> types{dtype::f32, dtype::bf16, dtype::i8};
  std::vector<std::unique_ptr<engine>> engines;
  for (const auto t : types)
    engines.push_back(s.start({.max_batch = 32, .max_context = 512, .kv_cache_tokens = 32 * 512,
                               .weights = t}));
  for (const auto batch : batches) {
    std::vector<std::vector<double>> taken(types.size());
    for (int round = 0; round < (how.quick ? 1 : 5); ++round)
      for (std::size_t i = 0; i < types.size(); ++i)
        for (const auto x : decode_steps(*engines[i], s, batch, how.quick ? 4 : 12))
          taken[i].push_back(x);
    for (std::size_t i = 0; i < types.size(); ++i) {
      const auto rate = batch / median(taken[i]);
      measurement m{"decode, batch " + std::to_string(batch) + ", " + name_of(types[i]), rate,
                    "tok/s"};
      if (i > 0) {
        m.against = "fp32";
        m.ratio = median(taken[0]) / median(taken[i]);
      }
      out.push_back(m);
      note(m.name + ": " + std::to_string(rate) + " tok/s");
    }
  }
}

/// Until every prompt is computed and answered by one token. No more is asked for: whoever is ready
/// first would go on decoding, and its tokens would be taken for the others'.
double prefill_seconds(const subject& s, bool share, std::int32_t group, std::int32_t length) {
  auto e = s.start({.max_batch = group, .share_prefixes = share});
  for (std::int32_t i = 0; i < group; ++i)
    e->submit(s.task(1, i, length, 1));
  return seconds([&] {
    while (e->statistics().sampled_tokens < group)
      e->step();
  });
}

void compare_sharing(const subject& s, const options& how, measurements& out) {
  const std::int32_t group = 8, length = how.quick ? 128 : 384;
  std::vector<double> shared, alone;
  for (int round = 0; round < (how.quick ? 1 : 3); ++round) {
    shared.push_back(prefill_seconds(s, true, group, length));
    alone.push_back(prefill_seconds(s, false, group, length));
  }
  out.push_back({"prefill of a group of 8, prompt of " + std::to_string(length), 1e3 * median(shared),
                 "ms", "without sharing (times faster)", median(alone) / median(shared), 5.0});
}

/// The longest time between two tokens of answers that run while a long prompt is computed.
double longest_gap(const subject& s, std::int32_t chunk, std::int32_t prompt) {
  auto e = s.start({.max_batch = 9, .max_context = prompt + 64, .prefill_tokens = chunk});
  for (std::int32_t i = 0; i < 8; ++i)
    e->submit(s.task(i, 0, 16, 4000));
  for (int i = 0; i < 3; ++i)
    e->step();
  e->submit(s.task(100, 0, prompt, 4));
  double longest = 0;
  const auto before = e->statistics().prefilled_tokens;
  do
    longest = std::max(longest, seconds([&] { e->step(); }));
  while (e->statistics().prefilled_tokens < before + prompt - 1);
  return longest;
}

void compare_chunks(const subject& s, const options& how, measurements& out) {
  const std::int32_t prompt = how.quick ? 512 : 1536;
  std::vector<double> chunked, whole;
  for (int round = 0; round < (how.quick ? 1 : 3); ++round) {
    chunked.push_back(longest_gap(s, 64, prompt));
    whole.push_back(longest_gap(s, 8192, prompt));
  }
  out.push_back({"gap between tokens while a prompt of " + std::to_string(prompt)
                   + " comes, prefill_chunk 64", 1e3 * median(chunked), "ms", "in one piece",
                 median(chunked) / median(whole), 0.25, true});
}

struct update_run {
  double rate = 0;                          ///< tokens per second
  std::vector<double> pauses, prefills, steps; ///< seconds
};

/// Decodes for a while with new weights every second, or with none. They are copied into the
/// staging buffers and laid out by another thread, as a pull does.
update_run decode_with_updates(const subject& s, dtype type, kv_policy kv, bool updates,
                               double duration) {
  const std::int32_t batch = 32;
  auto e = s.start({.max_batch = batch, .kv_cache_tokens = 32 * 1024, .kv = kv, .weights = type});
  std::vector<std::vector<std::byte>> published;
  for (const auto& v : e->staging())
    published.emplace_back(v.data, v.data + v.bytes());
  update_run result;
  std::int64_t id = 0;
  const auto top_up = [&] {
    while (e->running() + e->waiting() < static_cast<std::size_t>(batch))
      e->submit(s.task(id++, 0, 32, 200));
  };
  top_up();
  for (int i = 0; i < 3; ++i)
    e->step();
  e->prepare(); // the second set's pages
  e->install(e->current().next());
  std::atomic<bool> ready = false;
  std::thread puller;
  const auto begin = now(), first_tokens = static_cast<double>(e->statistics().sampled_tokens);
  for (double due = begin + (updates ? 1.0 : 1e9); now() < begin + duration;) {
    if (now() >= due) {
      due += 1;
      if (!puller.joinable())
        puller = std::thread([&] {
          const auto views = e->staging();
          for (std::size_t i = 0; i < views.size(); ++i)
            std::memcpy(views[i].data, published[i].data(), published[i].size());
          e->prepare();
          ready = true;
        });
    }
    if (ready) {
      puller.join();
      ready = false;
      const auto report = e->install(e->current().next());
      result.pauses.push_back(report.pause_s);
      result.prefills.push_back(report.prefill_s);
    }
    result.steps.push_back(seconds([&] { e->step(); }));
    top_up();
  }
  result.rate = (static_cast<double>(e->statistics().sampled_tokens) - first_tokens)
                / (now() - begin);
  if (puller.joinable())
    puller.join();
  return result;
}

void compare_updates(const subject& s, dtype type, const options& how, measurements& out) {
  const auto duration = how.quick ? 2.5 : 6.0;
  std::vector<double> still, kept, recomputed, pauses, keep_pauses, prefills, steps;
  const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (int round = 0; round < (how.quick ? 1 : 3); ++round) {
    auto r = decode_with_updates(s, type, kv_policy::keep, false, duration);
    still.push_back(r.rate);
    append(steps, r.steps);
    r = decode_with_updates(s, type, kv_policy::keep, true, duration);
    kept.push_back(r.rate);
    append(keep_pauses, r.pauses);
    r = decode_with_updates(s, type, kv_policy::recompute, true, duration);
    recomputed.push_back(r.rate);
    append(pauses, r.pauses);
    append(prefills, r.prefills);
  }
  const std::string with = std::string(", batch 32, ") + name_of(type);
  if (keep_pauses.empty() || pauses.empty()) { // the machine is too busy for one in that time
    out.push_back({.name = "weights that change" + with,
                   .missing = "no update came through within " + std::to_string(duration) + " s"});
    return;
  }
  out.push_back({"generation with an update every second, kv keep" + with, median(kept), "tok/s",
                 "without updates", median(kept) / median(still), 0.9});
  out.push_back({"generation with an update every second, kv recompute" + with, median(recomputed),
                 "tok/s", "without updates", median(recomputed) / median(still)});
  out.push_back({"pause of a swap, kv keep" + with, 1e3 * median(keep_pauses), "ms",
                 "a decode step", median(keep_pauses) / median(steps), 1.0, true});
  out.push_back({"pause of a swap, kv recompute" + with, 1e3 * median(pauses), "ms",
                 "a decode step + re-prefill", median(pauses) / (median(steps) + median(prefills)),
                 1.0, true});
  out.push_back({"re-prefill in that" + with, 1e3 * median(prefills), "ms"});
}

} // namespace

measurements generate(const options& how) {
  const subject s(how);
  measurements out;
  note("decoding in three precisions, " + std::to_string(threads) + " threads");
  compare_precisions(s, how, out);
  note("sharing prefixes");
  compare_sharing(s, how, out);
  note("a long prompt beside running answers");
  compare_chunks(s, how, out);
  for (const auto type : {dtype::f32, dtype::bf16}) {
    note(std::string("weights that change, ") + name_of(type));
    compare_updates(s, type, how, out);
  }
  return out;
}

} // namespace millrace::bench
