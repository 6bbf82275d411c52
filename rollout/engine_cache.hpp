#pragma once

#include "rollout/engine.hpp"
#include "runtime/ids.hpp"
#include "runtime/messages.hpp"
#include "runtime/model/answer_text.hpp"
#include "runtime/model/decoder.hpp"
#include "runtime/model/kv_cache.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace millrace::generation {

/// A rollout inside an engine, with where its keys and values lie.
struct sequence {
  rollout answer;
  sampling_params sampling;
  std::unique_ptr<model::answer_text> stops; ///< where the sampling has stop strings
  std::shared_ptr<likely_tokens> watched; ///< where somebody asked for them
  std::uint64_t order = 0; ///< of submission
  std::vector<std::int32_t> blocks;
  std::int32_t cached = 0;   ///< leading tokens whose keys and values are in the blocks
  std::int32_t computed_before = 0; ///< tokens that were cached once and then lost to preemption
  /// Names of its leading full blocks; valid while all of them were computed under one version.
  std::vector<model::block_pool::content_id> contents;
  bool one_version = true;
  bool tail_published = false;

  [[nodiscard]] std::int32_t length() const {
    return static_cast<std::int32_t>(answer.tokens.size());
  }
  /// Tokens to be cached before the last one can be decoded.
  [[nodiscard]] std::int32_t needed() const { return length() - 1; }
  [[nodiscard]] bool ready() const { return cached >= needed(); }
};

/// Gives sequences their blocks, and finds what another sequence has computed already: whole blocks
/// are shared, a prompt's last, partly filled block is copied.
class engine_cache {
public:
  engine_cache(model::decoder& decoder, std::int32_t blocks, bool share)
      : decoder_(decoder), pool_(blocks), stamps_(static_cast<std::size_t>(blocks), -1),
        share_(share) {}

  [[nodiscard]] std::int32_t available() const { return pool_.available(); }
  [[nodiscard]] std::int32_t capacity() const { return pool_.capacity(); }

  /// Makes room for the first `tokens` tokens; false when the cache is full (it then keeps what it
  /// got).
  bool reserve(sequence& s, std::int32_t tokens);
  void release(sequence& s);

  /// Takes over what is known of the sequence's next tokens under v; returns how many tokens.
  std::int32_t adopt(sequence& s, version v);
  /// Makes what the sequence has computed under v known to others.
  void publish(sequence& s, version v);

  /// The next piece that adopt() would look for: two sequences with equal keys had better not
  /// compute it at once.
  struct piece {
    model::block_pool::content_id parent = 0;
    std::span<const std::int32_t> tokens;
    [[nodiscard]] bool equals(const piece& other) const;
  };
  /// Empty tokens: nothing that could be shared.
  [[nodiscard]] piece next_piece(const sequence& s) const;

  /// After a swap without recomputation: what is cached stays usable for its own sequence only.
  void keep(std::span<sequence* const> all);
  /// Computes all cached tokens of `all` again under v, shared blocks once, at most `rows` tokens at
  /// a time; returns how many were computed.
  std::int64_t recompute(std::span<sequence* const> all, version v, std::int32_t rows);

private:
  [[nodiscard]] bool at_block_boundary(const sequence& s) const;

  model::decoder& decoder_;
  model::block_pool pool_;
  std::vector<std::int32_t> stamps_; ///< by block: the version that recompute() filled it under
  bool share_;
};

} // namespace millrace::generation
