#pragma once

#include "runtime/ids.hpp"
#include "runtime/messages.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace millrace::trainer {

/// Old log-probs computed before their rollout is trained on. A log-prob belongs to a token, all
/// tokens before it, and a version: it is found again only for exactly these, so that a rollout
/// which was sampled anew (after its generator died, say) never gets another's. Torch-free.
class old_logit_store {
public:
  /// The tokens of a rollout, with a hash of each one's past; keep it as long as the tokens.
  class key {
  public:
    key(rollout_id id, std::span<const std::int32_t> tokens,
        std::span<const std::int32_t> versions);

  private:
    friend class old_logit_store;
    rollout_id id_;
    std::span<const std::int32_t> versions_;
    std::vector<std::uint64_t> past_; ///< of tokens 0 … i
  };

  void put(const key& k, std::size_t position, float logp);
  [[nodiscard]] std::optional<float> find(const key& k, std::size_t position) const;
  [[nodiscard]] bool holds(const key& k, std::size_t position) const {
    return find(k, position).has_value();
  }

  void forget(rollout_id id);
  /// Forgets rollouts of which nothing as young as `v` is known: nobody will ask for them any more.
  void forget_below(version v);

  [[nodiscard]] std::int64_t bytes() const { return tokens_ * static_cast<std::int64_t>(sizeof(entry)); }
  [[nodiscard]] std::size_t rollouts() const { return rollouts_.size(); }

private:
  struct entry {
    std::uint64_t past = 0;
    std::int32_t version = no_version.value; ///< −1: nothing here
    float logp = 0;
  };
  std::unordered_map<rollout_id, std::vector<entry>> rollouts_;
  std::int64_t tokens_ = 0;
};

} // namespace millrace::trainer
