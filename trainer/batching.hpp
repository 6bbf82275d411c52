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

/// Each part holds indices, ascending.
using partition = std::vector<std::vector<std::size_t>>;

/// Sequences end to end, without padding. The model reads `tokens`; a sequence's last token is not
/// among them, because nothing follows it. Where siblings share a prompt it stands there once, as a
/// segment of its own that the answers continue. The arrays from `rows` on have one entry per
/// sampled token, in order of the sequences: row `rows[i]` of the model's output predicts
/// `targets[i]`; siblings may name the same row.
struct packed_sequences {
  std::vector<std::int64_t> tokens, positions;   ///< [N]
  std::vector<std::int32_t> cu_seqlens{0};       ///< [segments + 1], into tokens
  std::vector<std::int32_t> prefixes;            ///< [segments], as in model::packed_batch; or empty
  std::vector<std::int64_t> rows, targets;       ///< [M]
  std::vector<float> behaviour_logp;             ///< [M]
  std::vector<std::int32_t> versions;            ///< [M]
  std::vector<std::int32_t> sampled_cu_seqlens{0}; ///< [S + 1], into rows
};

/// Packs sequences[which[0]], sequences[which[1]], …; with `share_prompts` neighbours of one group
/// share the tokens that all of them begin with.
packed_sequences pack(std::span<const training_sequence> sequences,
                      std::span<const std::size_t> which, bool share_prompts = false);

/// Neighbours of one group in `which`, and what they share.
struct sibling_run {
  std::size_t first = 0, count = 0;  ///< in `which`
  std::int64_t prefix = 0;           ///< input tokens that all of them begin with; 0 for a run of one
  std::int64_t packed_tokens = 0;    ///< that pack() makes of them
};
std::vector<sibling_run> sibling_runs(std::span<const training_sequence> sequences,
                                      std::span<const std::size_t> which);

/// What must stay together in a micro-batch: siblings where sharing their prompt saves a tenth of
/// their tokens or more (cut into pieces where they exceed the budget together), else a sequence.
/// Indices are into `which`; lengths are the tokens that count against the budget.
struct packing_units {
  partition members;
  std::vector<std::int64_t> lengths;
};
packing_units units_of(std::span<const training_sequence> sequences,
                       std::span<const std::size_t> which, std::int64_t token_budget);

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
