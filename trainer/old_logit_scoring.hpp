#pragma once

#include "runtime/model/transformer.hpp"
#include "trainer/batching.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace millrace::trainer {

/// How packed forwards without gradient are made.
struct scoring_options {
  std::int64_t micro_batch_tokens = 0;
  micro_batch_packing packing = micro_batch_packing::fewest_sequences;
  double temperature = 1;
  bool share_prompts = true; ///< of neighbours of one group
};

/// As a training step makes its own.
scoring_options scoring_options_of(const settings& s);

/// Log-probs not known yet. (Not a NaN: on the way to another process that becomes a number.)
inline constexpr float unknown_logp = 1;
inline bool is_known(float logp) { return logp < unknown_logp; }

/// Log-probs of one version's tokens among several sequences: position by position, as found.
using version_sink = std::function<void(std::size_t sequence, std::size_t position, float logp)>;
/// Whether the token there, which is of the version asked for, is wanted.
using token_filter = std::function<bool(std::size_t sequence, std::size_t position)>;

/// Computes, under `network`, the log-probs of the tokens that carry version `v` (nothing: any
/// version) in sequences[i], i of `which`, and that `wanted` doesn't refuse. Each such sequence goes
/// through whole, up to its last such token: of a rollout with versions 3, 3, 4, 4 version 4 reads
/// all, version 3 only the first half, and the head sees the wanted tokens alone. Returns the tokens
/// that went through the model. Reads no state but its arguments'; the calling thread's threads are
/// used.
std::int64_t score_version(const model::transformer& network, std::optional<version> v,
                           std::span<const training_sequence> sequences,
                           std::span<const std::size_t> which, const scoring_options& how,
                           const version_sink& found, const token_filter& wanted = {});

/// The versions that sampled tokens of these sequences carry, youngest first.
std::vector<version> versions_present(std::span<const training_sequence> sequences,
                                      std::span<const std::size_t> which);

} // namespace millrace::trainer
