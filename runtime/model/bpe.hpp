#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace millrace::model {

/// Byte-pair encoding (Sennrich et al., 2016): a word's characters, or bytes, are joined pair by
/// pair, each time the pair that comes first in the list of merges, the leftmost first.
class bpe {
public:
  struct rules {
    /// Words are bytes: each byte is a symbol. Otherwise each character is.
    bool bytes = true;
    bool ignore_merges = false; ///< a word that is a token as a whole is that token
    bool byte_fallback = false; ///< a character without a token becomes its bytes' tokens <0xXX>
    bool fuse_unknown = false;  ///< neighbouring unknown characters are one unknown token
    std::int32_t unknown = -1;  ///< −1: characters without a token vanish
  };

  /// Two tokens that join, and into which; their place in the list is their rank.
  struct merge {
    std::int32_t left, right, whole;
  };

  bpe() = default;
  /// `pieces`: the text of each token (bytes where rules.bytes) and its id, each text once.
  bpe(const rules& r, const std::vector<std::pair<std::string, std::int32_t>>& pieces,
      const std::vector<merge>& merges);

  /// Memory for encode(), to be kept between calls.
  struct workspace {
    std::vector<std::int32_t> ids, next, previous;
    std::vector<std::uint64_t> found, queue;
  };

  /// Appends the tokens of `word` (UTF-8 where characters are symbols) to `out`.
  void encode(std::string_view word, workspace& space, std::vector<std::int32_t>& out) const;

private:
  /// Rank in the upper half, the whole's id in the lower; none where the two don't join.
  static constexpr std::uint64_t none = ~std::uint64_t{0};
  struct slot {
    std::uint64_t pair = ~std::uint64_t{0};
    std::uint64_t rank_and_whole = none;
  };
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  static std::uint64_t mixed(std::uint64_t x) {
    x *= 0x9E3779B97F4A7C15ULL;
    return x ^ x >> 32;
  }
  [[nodiscard]] std::uint64_t find(std::int32_t left, std::int32_t right) const;
  void insert(const merge& m, std::uint32_t rank);
  void symbols(std::string_view word, std::vector<std::int32_t>& ids) const;
  void merge_short(workspace& space) const;
  void merge_long(workspace& space) const;

  rules rules_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::int32_t> byte_ids_;     ///< by byte: its symbol, −1 none
  std::vector<std::int32_t> fallback_ids_; ///< by byte: <0xXX>; empty where one of them is missing
  std::vector<slot> slots_;                ///< open addressing, a power of two
};

} // namespace millrace::model
