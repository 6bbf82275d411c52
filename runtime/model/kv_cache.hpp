#pragma once

#include "runtime/ids.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace millrace::model {

/// Tokens per block of the KV cache.
inline constexpr std::int32_t block_tokens = 16;

constexpr std::int32_t blocks_for(std::int32_t tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

/// Which blocks of a bounded KV cache hold what; the keys and values themselves belong to the
/// decoder. Blocks are shared by reference count. What a block holds is named by (content, version):
/// a prefix is found only under the version that computed it, so stale reuse cannot be expressed.
/// Pure bookkeeping: no tensors, no clock.
class block_pool {
public:
  explicit block_pool(std::int32_t blocks);

  [[nodiscard]] std::int32_t capacity() const { return static_cast<std::int32_t>(blocks_.size()); }
  /// Blocks that allocate() could hand out now (unused ones that still hold a prefix included).
  [[nodiscard]] std::int32_t available() const { return available_; }

  /// A block with one reference, or −1 when none is available. The least recently freed goes
  /// first; what prefix it held is forgotten.
  std::int32_t allocate();
  void retain(std::int32_t block);
  void release(std::int32_t block);

  /// Names a prefix: what precedes it, its tokens and its version. 0 is the empty prefix.
  using content_id = std::uint64_t;
  static constexpr content_id empty_prefix = 0;

  struct match {
    std::int32_t block = -1;
    content_id content = empty_prefix; ///< names the prefix up to the end of this block
  };

  /// The block that holds `tokens` (a whole block's or, for a prompt's tail, fewer) after prefix
  /// `parent`, computed under v. No reference is taken.
  [[nodiscard]] std::optional<match> find(content_id parent, std::span<const std::int32_t> tokens,
                                          version v) const;

  /// Says that `block` begins with `tokens` after `parent`, computed under v; returns the name of
  /// the longer prefix. If another block was known for it, that one stays the one found.
  content_id publish(content_id parent, std::span<const std::int32_t> tokens, version v,
                     std::int32_t block);

  /// Forgets every prefix: after a swap of weights.
  void forget_all();

private:
  struct key {
    content_id parent;
    std::int32_t version;
    std::vector<std::int32_t> tokens;
    bool operator==(const key&) const = default;
  };
  struct key_hash {
    std::size_t operator()(const key& k) const noexcept;
  };
  struct block {
    std::int32_t references = 0;
    std::int32_t before = -1, after = -1; ///< in the list of free blocks
    std::vector<key> keys;                ///< under which it can be found
  };

  void unlink(std::int32_t b);
  void append_free(std::int32_t b);

  std::vector<block> blocks_;
  std::unordered_map<key, match, key_hash> known_;
  std::int32_t available_ = 0;
  std::int32_t first_free_ = -1, last_free_ = -1;
  content_id next_content_ = 1;
};

} // namespace millrace::model
