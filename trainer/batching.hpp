#pragma once

#include "runtime/config/settings.hpp"
#include "runtime/messages.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::trainer {

/// A rollout as the trainer sees it. The arrays are those of the rollout it was made from, which
/// must outlive it.
struct training_sequence {
  rollout_id id;
  std::int32_t group = 0; ///< index of its group in the batch: 0, 1, 2, … without gaps
  float reward = 0;
  std::span<const std::int32_t> tokens;         ///< prompt and answer
  std::span<const float> behaviour_logp;        ///< as long as tokens
  std::span<const std::int32_t> versions;       ///< as long as tokens; −1: not sampled
  [[nodiscard]] std::int32_t sampled() const;   ///< tokens with a version
};

/// Every rollout of the groups, in their order. Throws invariant_error when a rollout's arrays
/// disagree in length or its very first token claims to be sampled (nothing could predict it).
std::vector<training_sequence> training_sequences(std::span<const scored_group> groups);

/// Sequences end to end, without padding. The model reads `tokens`; a sequence's last token is not
/// among them, because nothing follows it. The arrays from `rows` on have one entry per sampled
/// token, in order: row `rows[i]` of the model's output predicts `targets[i]`.
struct packed_sequences {
  std::vector<std::int64_t> tokens, positions;   ///< [N]
  std::vector<std::int32_t> cu_seqlens{0};       ///< [S + 1], into tokens
  std::vector<std::int64_t> rows, targets;       ///< [M]
  std::vector<float> behaviour_logp;             ///< [M]
  std::vector<std::int32_t> versions;            ///< [M]
  std::vector<std::int32_t> sampled_cu_seqlens{0}; ///< [S + 1], into rows
};

/// Packs sequences[which[0]], sequences[which[1]], …
packed_sequences pack(std::span<const training_sequence> sequences,
                      std::span<const std::size_t> which);

/// Each part holds indices, ascending.
using partition = std::vector<std::vector<std::size_t>>;

/// Micro-batches of at most `token_budget` tokens each, and `at_least` many of them (but never an
/// empty one). fewest_sequences (AReaL, algorithm 1): the longest first, each into the fitting
/// micro-batch with the fewest sequences; a new one is opened when none fits. karmarkar_karp: about
/// as few as fit, with token counts as equal as differencing makes them. Throws user_error when a
/// single sequence exceeds the budget.
partition micro_batches(std::span<const std::int64_t> lengths, std::int64_t token_budget,
                        micro_batch_packing rule, std::size_t at_least = 1);

/// Splits into `parts` parts of nearly equal weight, by the largest differencing method
/// (Karmarkar and Karp, 1982). equal_counts: the parts' sizes differ by one at most. Parts may be
/// empty when there are fewer weights than parts.
partition balanced_parts(std::span<const std::int64_t> weights, std::size_t parts,
                         bool equal_counts);

/// Splits the batch into `count` minibatches (fewer when there are fewer groups) of whole groups,
/// equal in groups and nearly so in tokens. The indices are of sequences. The split depends on
/// nothing but the arguments; another seed gives another split of the same balance.
partition minibatches(std::span<const training_sequence> sequences, std::size_t count,
                      std::uint64_t seed);

} // namespace millrace::trainer
