#include "replay/group_set.hpp"

#include "runtime/error.hpp"

#include <string>

namespace millrace {

bool group_set::insert(std::int64_t group) {
  ensure(group >= 0, [&] { return "group id " + std::to_string(group) + " is negative"; });
  const auto word = group / 64;
  const auto bit = std::uint64_t{1} << (group % 64);
  if (word < full_words_)
    return false;
  auto& bits = words_[word];
  if ((bits & bit) != 0)
    return false;
  bits |= bit;
  for (auto it = words_.begin();
       it != words_.end() && it->first == full_words_ && it->second == ~std::uint64_t{0};
       it = words_.erase(it))
    ++full_words_;
  return true;
}

bool group_set::contains(std::int64_t group) const {
  if (group < 0)
    return false;
  if (group / 64 < full_words_)
    return true;
  auto it = words_.find(group / 64);
  return it != words_.end() && ((it->second >> (group % 64)) & 1) != 0;
}

group_set group_set::restore(std::int64_t full_words, std::map<std::int64_t, std::uint64_t> words) {
  ensure(full_words >= 0 && (words.empty() || words.begin()->first >= full_words),
         "a group set whose words overlap what is full");
  group_set s;
  s.full_words_ = full_words;
  s.words_ = std::move(words);
  return s;
}

} // namespace millrace
