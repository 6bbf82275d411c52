#pragma once

#include "policy_loss/params.hpp"
#include "policy_loss/registry.hpp"
#include "policy_loss/statistics.hpp"

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::policy_loss {

/// What a loss is divided by. Additive over micro-batches and data-parallel ranks.
struct counts {
  std::int64_t tokens = 0;    ///< valid tokens (mask = 1)
  std::int64_t sequences = 0; ///< sequences with at least one valid token
  std::int64_t batch = 0;     ///< all sequences, the empty ones too
  /// What is left after the loss's own masks; only known once it was evaluated. Needed as a global
  /// count for `denominator` = kept (both) and roll_hybrid (tokens).
  std::optional<std::int64_t> kept_tokens;
  std::optional<std::int64_t> kept_sequences;
};

/// Sums; a kept count that either side lacks is unknown in the sum.
counts operator+(const counts& a, const counts& b);

/// Everything a policy loss may look at. Per-token tensors have one of two layouts, all the same:
/// packed, 1-D [N] with `cu_seqlens` of S+1 offsets; or padded, [B, T], `cu_seqlens` empty, S = B.
/// Both give the same numbers. Any floating dtype; arithmetic is done in fp64.
struct inputs {
  at::Tensor logp_new;   ///< log θ of the sampled token: the only tensor that carries gradient
  at::Tensor logp_prox;  ///< log prox, training side; undefined where the loss has no use for it
  at::Tensor logp_behav; ///< log μ, as the generator reported it
  at::Tensor logp_ref;   ///< log of the frozen reference, for KL
  at::Tensor advantages; ///< per token; or [S], one per sequence
  at::Tensor mask;       ///< per token, bool or 0/1: trained on. Undefined: all are
  at::Tensor rewards;    ///< [S], for `topr` with a reward rule
  std::vector<std::int32_t> cu_seqlens;

  /// Further per-token mask (bool), combined with the loss's own: what is 0 counts as masked away,
  /// i.e. by `denominator`. For m2po it replaces the selection, which needs the whole batch
  /// (m2po_keep) when the loss is evaluated by micro-batches.
  at::Tensor keep;

  /// Counts over all micro-batches and ranks. The loss is then this part's share: summed over the
  /// parts it equals the loss of the whole batch, for any split (at sequence borders for losses and
  /// aggregations that look at sequences). Where gradients are *averaged* over ranks, multiply by
  /// their number. Absent: this is the whole batch.
  std::optional<counts> global;
};

/// What a policy loss gives back. Per-token tensors are detached, fp64 (masks bool), in the inputs'
/// layout, and 0 outside the mask.
struct outputs {
  at::Tensor loss;   ///< 0-d fp64; backward() reaches logp_new. 0 (with gradient 0) for no tokens
  at::Tensor weight; ///< the constant factor on each token's term (1 where the loss has none)
  at::Tensor keep;   ///< valid, finite and not masked away by the loss
  at::Tensor active; ///< of these, the ones not clipped: they have a gradient (where A ≠ 0)
  /// More by name: per token (`logp_prox`, `r_stale`, …) or per sequence [S] (`seq_ratio`).
  std::map<std::string, at::Tensor> named;
  statistics stats;
  counts local; ///< this part's counts, with the kept ones
};

/// Which inputs a configured loss reads, and whether its masks look beyond a micro-batch.
struct requirements {
  bool prox = false;
  bool behav = false;
  bool ref = false;
  bool rewards = false;
  bool sequences_whole = false; ///< must not be evaluated on part of a sequence
  bool batch_whole = false;     ///< needs `inputs::keep` from the whole batch when split (m2po)
  bool kept_counts = false;     ///< needs global kept counts when split: evaluate twice
};

/// A policy loss, configured. Pure: no state changes in compute(), so one may serve many threads.
class loss {
public:
  virtual ~loss() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual requirements needs() const = 0;

  /// @throws millrace::user_error when an input that the loss needs is undefined
  /// @throws millrace::invariant_error when layouts or sizes disagree
  [[nodiscard]] virtual outputs compute(const inputs& in) const = 0;
};

using loss_registry = registry<loss>;

/// The losses of this library. A plugin's: copy, `add`, and hand the copy to make_loss().
const loss_registry& builtin_losses();

/// The loss `name` with `params`, e.g. make_loss("ppo_clip", {{"eps", 0.2}}). `where` is the JSON
/// path that errors name.
/// @throws millrace::user_error for an unknown name (with the nearest known ones), an unknown,
///         ill-typed or out-of-range parameter
std::unique_ptr<loss> make_loss(std::string_view name, const nlohmann::json& params,
                                const loss_registry& known = builtin_losses(),
                                std::string_view where = "algorithm.loss");

/// Valid tokens and sequences of `in`, before any loss's own masks: what to sum over micro-batches
/// and ranks for `inputs::global`. One device-to-host transfer.
counts count(const inputs& in);

} // namespace millrace::policy_loss
