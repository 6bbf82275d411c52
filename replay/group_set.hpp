#pragma once

#include <cstdint>
#include <map>

namespace millrace {

/// A set of group ids that only grows. Ids are handed out in order, so it takes about a bit per
/// group that was admitted; what is complete up to some id takes nothing.
class group_set {
public:
  /// False when it was there before. Ids are not negative.
  bool insert(std::int64_t group);
  [[nodiscard]] bool contains(std::int64_t group) const;

  /// Every id below 64·full_words() is in; words() holds the rest, 64 ids a word.
  [[nodiscard]] std::int64_t full_words() const { return full_words_; }
  [[nodiscard]] const std::map<std::int64_t, std::uint64_t>& words() const { return words_; }
  /// What the two above said.
  static group_set restore(std::int64_t full_words, std::map<std::int64_t, std::uint64_t> words);

  bool operator==(const group_set&) const = default;

private:
  std::int64_t full_words_ = 0;
  std::map<std::int64_t, std::uint64_t> words_; ///< id / 64 → which of those ids are in
};

} // namespace millrace
