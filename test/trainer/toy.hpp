#pragma once

#include "runtime/config/settings.hpp"
#include "runtime/messages.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/random.hpp"

#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

namespace millrace::toy {

inline model::model_config tiny_config(std::int64_t vocabulary = 12) {
  model::model_config c;
  c.vocab_size = vocabulary;
  c.hidden_size = 16;
  c.intermediate_size = 24;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 1;
  c.head_dim = 8;
  c.max_position_embeddings = 64;
  c.tie_word_embeddings = true;
  return c;
}

inline model::transformer tiny_network(std::uint64_t seed = 1) {
  at::set_num_threads(1); // two threads on a busy machine are ten times slower than one
  model::transformer network(tiny_config());
  network.initialise(seed);
  return network;
}

inline settings tiny_settings() {
  settings s;
  s.run.steps = 100;
  s.rollout.eta = 4;
  s.trainer.lr = 1e-2;
  s.trainer.minibatches = 1;
  s.trainer.micro_batch_tokens = 100000;
  s.model.architecture = {.layers = 2, .hidden = 16, .heads = 2, .kv_heads = 1,
                          .intermediate = 24, .max_positions = 64};
  s.tokenizer.alphabet = "0123456789+=";
  return s;
}

/// All parameters, as numbers.
inline std::vector<float> parameters(const std::vector<tensor_view>& views) {
  std::vector<float> all;
  for (const auto& v : views) {
    auto* f = reinterpret_cast<const float*>(v.data);
    all.insert(all.end(), f, f + v.elements());
  }
  return all;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size())
    return 1e30;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(double(a[i]) - double(b[i])));
  return largest;
}

/// Groups of random rollouts as if sampled at versions within η of `from`. A third of the groups
/// has equal rewards.
inline std::vector<scored_group> random_groups(std::uint64_t seed, int groups, int per_group,
                                               version from, int eta, int vocabulary = 12) {
  random_stream random{seed, stream_of("random_groups")};
  std::vector<scored_group> result;
  for (int g = 0; g < groups; ++g) {
    scored_group group{.group = g};
    auto same = random.below(3) == 0;
    for (int i = 0; i < per_group; ++i) {
      rollout r;
      r.id = {g, i};
      r.prompt_length = 1 + static_cast<int>(random.below(5));
      auto length = r.prompt_length + 1 + static_cast<int>(random.below(10));
      auto v = from.value - static_cast<int>(random.below(1 + std::min(eta, from.value)));
      for (int t = 0; t < length; ++t) {
        auto sampled = t >= r.prompt_length;
        if (sampled && v < from.value && random.below(4) == 0)
          ++v; // interrupted
        r.tokens.push_back(static_cast<std::int32_t>(random.below(vocabulary)));
        r.versions.push_back(sampled ? v : -1);
        r.behaviour_logp.push_back(sampled ? -2.5F + 0.3F * random.normal() : 0.0F);
      }
      r.reward = same ? 1.0F : static_cast<float>(random.below(2));
      group.rollouts.push_back(std::move(r));
    }
    result.push_back(std::move(group));
  }
  return result;
}

/// The same, where a group's rollouts answer one prompt, and some begin alike.
inline std::vector<scored_group> sibling_groups(std::uint64_t seed, int groups, int per_group,
                                                version from, int eta, int vocabulary = 12) {
  auto result = random_groups(seed, groups, per_group, from, eta, vocabulary);
  for (auto& g : result)
    for (auto& r : g.rollouts) {
      const auto& first = g.rollouts.front();
      auto prompt = static_cast<std::size_t>(first.prompt_length);
      auto old = static_cast<std::size_t>(r.prompt_length);
      auto replace = [&](auto& into, const auto& by) {
        into.erase(into.begin(), into.begin() + static_cast<std::ptrdiff_t>(old));
        into.insert(into.begin(), by.begin(), by.begin() + static_cast<std::ptrdiff_t>(prompt));
      };
      if (&r != &first) {
        replace(r.tokens, first.tokens);
        replace(r.versions, first.versions);
        replace(r.behaviour_logp, first.behaviour_logp);
        r.prompt_length = first.prompt_length;
      }
    }
  return result;
}

} // namespace millrace::toy
