#pragma once

#include "runtime/messages.hpp"

#include <catch2/catch.hpp>

#include <random>

namespace millrace {

/// A rollout with two prompt tokens and one sampled token per entry of `versions`.
inline rollout make_rollout(rollout_id id, const std::vector<std::int32_t>& versions) {
  rollout r;
  r.id = id;
  r.prompt_id = id.group;
  r.prompt_length = 2;
  r.tokens = {1, 2};
  r.behaviour_logp = {0, 0};
  r.versions = {-1, -1};
  for (auto v : versions) {
    r.tokens.push_back(3);
    r.behaviour_logp.push_back(-0.5F);
    r.versions.push_back(v);
  }
  r.finish = finish_reason::stop;
  r.text = "answer " + to_string(id);
  r.reward = static_cast<float>(id.sample % 2);
  r.correct = id.sample % 2 == 1;
  return r;
}

/// One rollout per entry, each with the versions of its sampled tokens.
inline scored_group make_group(std::int64_t id,
                               const std::vector<std::vector<std::int32_t>>& versions) {
  scored_group g{id, {id, "question " + std::to_string(id), "42"}, {}};
  for (const auto& v : versions)
    g.rollouts.push_back(make_rollout({id, static_cast<std::int32_t>(g.rollouts.size())}, v));
  return g;
}

/// A group of n rollouts whose tokens were all sampled by `v`.
inline scored_group uniform_group(std::int64_t id, std::int32_t n, std::int32_t v) {
  const std::vector<std::int32_t> versions{v, v};
  return make_group(id, {static_cast<std::size_t>(n), versions});
}

/// Versions that grow along each rollout, none above `newest`, from `newest` − `spread` on.
inline scored_group random_group(std::mt19937_64& random, std::int64_t id, std::int32_t n,
                                 std::int32_t newest, std::int32_t spread) {
  auto below = [&](std::int32_t k) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(k));
  };
  std::vector<std::vector<std::int32_t>> versions(static_cast<std::size_t>(n));
  for (auto& vs : versions) {
    auto v = std::max(0, newest - below(spread + 1));
    for (auto tokens = 1 + below(6); tokens > 0; --tokens) {
      vs.push_back(v);
      v = std::min(newest, v + (below(3) == 0 ? 1 : 0));
    }
  }
  return make_group(id, versions);
}

} // namespace millrace
