#include "trainer/old_logit_store.hpp"

#include <algorithm>

namespace millrace::trainer {

old_logit_store::key::key(rollout_id id, std::span<const std::int32_t> tokens,
                          std::span<const std::int32_t> versions)
    : id_(id), versions_(versions) {
  past_.reserve(tokens.size());
  std::uint64_t h = 0x9E3779B97F4A7C15ULL;
  for (auto t : tokens) {
    h = (h ^ static_cast<std::uint32_t>(t)) * 0xBF58476D1CE4E5B9ULL;
    h ^= h >> 29;
    past_.push_back(h);
  }
}

void old_logit_store::put(const key& k, std::size_t position, float logp) {
  auto& entries = rollouts_[k.id_];
  if (entries.size() <= position) {
    tokens_ += static_cast<std::int64_t>(position + 1 - entries.size());
    entries.resize(position + 1);
  }
  entries[position] = {k.past_[position], k.versions_[position], logp};
}

std::optional<float> old_logit_store::find(const key& k, std::size_t position) const {
  auto it = rollouts_.find(k.id_);
  if (it == rollouts_.end() || position >= it->second.size())
    return std::nullopt;
  const auto& e = it->second[position];
  if (e.version < 0 || e.version != k.versions_[position] || e.past != k.past_[position])
    return std::nullopt;
  return e.logp;
}

void old_logit_store::forget(rollout_id id) {
  auto it = rollouts_.find(id);
  if (it == rollouts_.end())
    return;
  tokens_ -= static_cast<std::int64_t>(it->second.size());
  rollouts_.erase(it);
}

void old_logit_store::forget_below(version v) {
  std::erase_if(rollouts_, [&](const auto& r) {
    auto young = std::any_of(r.second.begin(), r.second.end(),
                             [&](const entry& e) { return e.version >= v.value; });
    if (!young)
      tokens_ -= static_cast<std::int64_t>(r.second.size());
    return !young;
  });
}

} // namespace millrace::trainer
