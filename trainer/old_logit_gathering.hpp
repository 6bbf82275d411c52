#pragma once

#include "runtime/ids.hpp"
#include "trainer/old_logits.hpp"
#include "trainer/parallel.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace millrace::trainer {

class collectives;

/// Whose log-probs this rank computes: siblings together, whichever step they are trained in.
struct rank_share {
  std::int64_t rank = 0, ranks = 1;
  explicit rank_share(const rank_mesh* mesh)
      : rank(mesh ? mesh->data_index() : 0), ranks(mesh ? mesh->grid.dp : 1) {}
  [[nodiscard]] bool has(rollout_id id) const {
    return static_cast<std::uint64_t>(id.group) % static_cast<std::uint64_t>(ranks)
           == static_cast<std::uint64_t>(rank);
  }
};

/// The old log-probs of a batch's sampled tokens while they are being gathered, each with the route
/// by which it came. Tokens that other ranks compute are nothing to be looked for.
class old_logit_gathering {
public:
  old_logit_gathering(const batch_scorer& scorer, const rank_share& share);

  /// Token `t` of sequence `s`.
  [[nodiscard]] bool missing(std::size_t s, std::size_t t) const {
    return places_[s][t] >= 0 && !known_[static_cast<std::size_t>(places_[s][t])];
  }
  /// Versions of which something is missing, with how many tokens; youngest first.
  [[nodiscard]] std::map<version, std::int64_t, std::greater<>> missing_versions() const;
  void set(std::size_t s, std::size_t t, float logp, old_logit_route route);
  /// Every rank gets what the others have computed.
  void exchange(collectives& data);
  void write(old_log_probs& out) &&;

private:
  std::span<const training_sequence> sequences_;
  std::vector<std::vector<std::int32_t>> places_; ///< by sequence and token; −1: not sampled
  std::vector<float> logp_;
  std::vector<old_logit_route> routes_;
  std::vector<bool> known_, others_;
};

} // namespace millrace::trainer
