#include "runtime/model/bpe.hpp"

#include "runtime/model/utf8.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <functional>
#include <utility>

namespace millrace::model {

bpe::bpe(const rules& r, const std::vector<std::pair<std::string, std::int32_t>>& pieces,
         const std::vector<merge>& merges)
  : rules_(r), byte_ids_(256, -1) {
  ids_.reserve(pieces.size());
  for (const auto& [text, id] : pieces) {
    ids_.emplace(text, id);
    if (text.size() == 1)
      byte_ids_[static_cast<unsigned char>(text[0])] = id;
  }
  if (r.byte_fallback)
    for (int b = 0; b < 256; ++b) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", b);
      const auto found = ids_.find(name);
      fallback_ids_.push_back(found == ids_.end() ? -1 : found->second);
    }
  slots_.resize(std::bit_ceil(merges.size() * 2 + 16));
  for (std::size_t i = 0; i < merges.size(); ++i)
    insert(merges[i], static_cast<std::uint32_t>(i));
}

void bpe::insert(const merge& m, std::uint32_t rank) {
  const auto pair = pair_of(m.left, m.right);
  auto i = mixed(pair) & (slots_.size() - 1);
  while (slots_[i].rank_and_whole != none && slots_[i].pair != pair)
    i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {pair, std::uint64_t{rank} << 32 | static_cast<std::uint32_t>(m.whole)};
}

std::uint64_t bpe::find(std::int32_t left, std::int32_t right) const {
  const auto pair = pair_of(left, right);
  for (auto i = mixed(pair) & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].pair == pair || slots_[i].rank_and_whole == none)
      return slots_[i].rank_and_whole;
  }
}

/// The word's symbols, as the tokenizers package makes them: an unknown token comes out before the
/// next known one.
void bpe::symbols(std::string_view word, std::vector<std::int32_t>& ids) const {
  ids.clear();
  bool unknown = false;
  const auto known = [&](std::int32_t id) {
    if (std::exchange(unknown, false))
      ids.push_back(rules_.unknown);
    ids.push_back(id);
  };
  for (std::size_t at = 0; at < word.size();) {
    const auto begin = at;
    if (rules_.bytes)
      ++at;
    else
      next_code_point(word, at);
    const auto symbol = word.substr(begin, at - begin);
    auto id = -1;
    if (symbol.size() == 1)
      id = byte_ids_[static_cast<unsigned char>(symbol[0])];
    else if (const auto found = ids_.find(std::string(symbol)); found != ids_.end())
      id = found->second;
    if (id >= 0) {
      known(id);
      continue;
    }
    const auto has_fallback = [&](char c) {
      return fallback_ids_[static_cast<unsigned char>(c)] >= 0;
    };
    if (rules_.byte_fallback && std::ranges::all_of(symbol, has_fallback)) {
      for (const char c : symbol)
        ids.push_back(fallback_ids_[static_cast<unsigned char>(c)]);
    } else if (rules_.unknown >= 0) {
      if (unknown && !rules_.fuse_unknown)
        ids.push_back(rules_.unknown);
      unknown = true;
    }
  }
  if (unknown)
    ids.push_back(rules_.unknown);
}

/// Looks at all pairs for each merge: the fastest for words, as words go.
void bpe::merge_short(workspace& space) const {
  auto& ids = space.ids;
  auto& found = space.found;
  found.clear();
  for (std::size_t i = 0; i + 1 < ids.size(); ++i)
    found.push_back(find(ids[i], ids[i + 1]));
  while (!found.empty()) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < found.size(); ++i)
      if (found[i] < found[best])
        best = i;
    if (found[best] == none)
      return;
    ids[best] = static_cast<std::int32_t>(found[best] & 0xFFFFFFFFU);
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    found.erase(found.begin() + static_cast<std::ptrdiff_t>(best));
    if (best < found.size())
      found[best] = find(ids[best], ids[best + 1]);
    if (best > 0)
      found[best - 1] = find(ids[best - 1], ids[best]);
  }
}

/// A queue of pairs by rank and place, over a linked list of symbols: n log n for words without
/// end. Ranks and places fit 32 bits each.
void bpe::merge_long(workspace& space) const {
  auto& [ids, next, previous, found, queue] = space;
  const auto n = static_cast<std::int32_t>(ids.size());
  next.resize(ids.size());
  previous.resize(ids.size());
  found.assign(ids.size(), none);
  queue.clear();
  const auto look = [&](std::int32_t i) {
    found[i] = next[i] < n ? find(ids[i], ids[next[i]]) : none;
    if (found[i] != none) {
      queue.push_back((found[i] & ~std::uint64_t{0xFFFFFFFFU}) | static_cast<std::uint32_t>(i));
      std::ranges::push_heap(queue, std::greater<>{});
    }
  };
  for (std::int32_t i = 0; i < n; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
    look(i);
  }
  while (!queue.empty()) {
    std::ranges::pop_heap(queue, std::greater<>{});
    const auto top = queue.back();
    queue.pop_back();
    const auto i = static_cast<std::int32_t>(top & 0xFFFFFFFFU);
    if (ids[i] < 0 || found[i] == none || found[i] >> 32 != top >> 32)
      continue; // one of the two has been merged with another since
    const auto gone = next[i];
    ids[i] = static_cast<std::int32_t>(found[i] & 0xFFFFFFFFU);
    ids[gone] = -1;
    next[i] = next[gone];
    if (next[i] < n)
      previous[next[i]] = i;
    look(i);
    if (previous[i] >= 0)
      look(previous[i]);
  }
  std::erase(ids, -1);
}

void bpe::encode(std::string_view word, workspace& space, std::vector<std::int32_t>& out) const {
  if (rules_.ignore_merges)
    if (const auto whole = ids_.find(std::string(word)); whole != ids_.end()) {
      out.push_back(whole->second);
      return;
    }
  symbols(word, space.ids);
  if (space.ids.size() <= 64)
    merge_short(space);
  else
    merge_long(space);
  out.insert(out.end(), space.ids.begin(), space.ids.end());
}

} // namespace millrace::model
