#include "rollout/engine_cache.hpp"

#include <algorithm>
#include <unordered_set>

namespace millrace::generation {
namespace {

constexpr auto block = model::block_tokens;

std::span<const std::int32_t> slice(const sequence& s, std::int32_t from, std::int32_t to) {
  return std::span(s.answer.tokens).subspan(static_cast<std::size_t>(from),
                                            static_cast<std::size_t>(to - from));
}

/// The tokens of a prompt that every answer to it has in common and caches before decoding.
std::int32_t shareable(const sequence& s) { return s.answer.prompt_length - 1; }

model::block_pool::content_id parent_of(const sequence& s) {
  return s.contents.empty() ? model::block_pool::empty_prefix : s.contents.back();
}

} // namespace

bool engine_cache::piece::equals(const piece& other) const {
  return parent == other.parent && std::ranges::equal(tokens, other.tokens);
}

bool engine_cache::reserve(sequence& s, std::int32_t tokens) {
  while (static_cast<std::int32_t>(s.blocks.size()) < model::blocks_for(tokens)) {
    const auto b = pool_.allocate();
    if (b < 0)
      return false;
    stamps_[static_cast<std::size_t>(b)] = -1;
    s.blocks.push_back(b);
  }
  return true;
}

void engine_cache::release(sequence& s) {
  // Last block first: a prefix is worth more than what follows it, so it is reused later.
  for (auto b = s.blocks.rbegin(); b != s.blocks.rend(); ++b)
    pool_.release(*b);
  s.blocks.clear();
  s.contents.clear();
  s.computed_before = std::max(s.computed_before, s.cached);
  s.cached = 0;
  s.one_version = true;
  s.tail_published = false;
}

bool engine_cache::at_block_boundary(const sequence& s) const {
  const auto full = static_cast<std::size_t>(s.cached / block);
  return share_ && s.one_version && s.cached % block == 0 && s.contents.size() == full
         && s.blocks.size() == full;
}

engine_cache::piece engine_cache::next_piece(const sequence& s) const {
  if (!at_block_boundary(s))
    return {};
  const auto end = s.cached + block <= s.needed() ? s.cached + block
                                                  : std::min(s.needed(), shareable(s));
  if (end <= s.cached)
    return {};
  return {parent_of(s), slice(s, s.cached, end)};
}

std::int32_t engine_cache::adopt(sequence& s, version v) {
  const auto before = s.cached;
  if (!at_block_boundary(s))
    return 0;
  while (s.cached + block <= s.needed()) {
    const auto known = pool_.find(parent_of(s), slice(s, s.cached, s.cached + block), v);
    if (!known)
      break;
    pool_.retain(known->block);
    s.blocks.push_back(known->block);
    s.contents.push_back(known->content);
    s.cached += block;
  }
  const auto tail = shareable(s) - s.cached;
  if (tail > 0 && tail < block && s.needed() >= shareable(s)) {
    const auto known = pool_.find(parent_of(s), slice(s, s.cached, shareable(s)), v);
    if (known) {
      // Held while the copy's block is found, which might else be this very one.
      pool_.retain(known->block);
      if (reserve(s, shareable(s))) {
        decoder_.copy_block(known->block, s.blocks.back());
        s.cached = shareable(s);
      }
      pool_.release(known->block);
    }
  }
  return s.cached - before;
}

void engine_cache::publish(sequence& s, version v) {
  if (!share_ || !s.one_version)
    return;
  const auto publish_tail = [&] {
    const auto whole = shareable(s) / block;
    if (s.tail_published || s.cached < shareable(s) || shareable(s) % block == 0
        || static_cast<std::int32_t>(s.contents.size()) != whole)
      return;
    pool_.publish(parent_of(s), slice(s, whole * block, shareable(s)), v,
                  s.blocks[static_cast<std::size_t>(whole)]);
    s.tail_published = true;
  };
  publish_tail();
  while (static_cast<std::int32_t>(s.contents.size()) < s.cached / block) {
    const auto i = static_cast<std::int32_t>(s.contents.size());
    s.contents.push_back(pool_.publish(parent_of(s), slice(s, i * block, (i + 1) * block), v,
                                       s.blocks[static_cast<std::size_t>(i)]));
    publish_tail();
  }
}

void engine_cache::keep(std::span<sequence* const> all) {
  pool_.forget_all();
  for (auto* s : all) {
    s->contents.clear();
    s->one_version = s->cached == 0;
  }
}

std::int64_t engine_cache::recompute(std::span<sequence* const> all, version v,
                                     std::int32_t rows) {
  pool_.forget_all();
  std::vector<std::int32_t> done(all.size(), 0);
  std::vector<model::token_run> runs;
  std::vector<std::size_t> who;
  std::int64_t computed = 0;
  while (true) {
    runs.clear();
    who.clear();
    std::unordered_set<std::int32_t> claimed;
    std::int32_t left = rows;
    for (std::size_t i = 0; i < all.size() && left > 0; ++i) {
      auto& s = *all[i];
      while (done[i] + block <= s.cached
             && stamps_[static_cast<std::size_t>(s.blocks[static_cast<std::size_t>(
                  done[i] / block)])] == v.value)
        done[i] += block;
      if (done[i] >= s.cached)
        continue;
      // A shared block is filled by one; the others wait for the next round.
      if (!claimed.insert(s.blocks[static_cast<std::size_t>(done[i] / block)]).second)
        continue;
      const auto take = std::min(left, s.cached - done[i]);
      runs.push_back({slice(s, done[i], done[i] + take), done[i], s.blocks.data(), false});
      who.push_back(i);
      left -= take;
    }
    if (runs.empty())
      break;
    decoder_.forward(runs);
    for (std::size_t j = 0; j < runs.size(); ++j) {
      const auto i = who[j];
      const auto from = done[i] / block;
      done[i] += static_cast<std::int32_t>(runs[j].tokens.size());
      computed += static_cast<std::int64_t>(runs[j].tokens.size());
      for (auto b = from; b < done[i] / block; ++b)
        stamps_[static_cast<std::size_t>(all[i]->blocks[static_cast<std::size_t>(b)])] = v.value;
    }
  }
  for (auto* s : all) {
    s->contents.clear();
    s->one_version = true;
    s->tail_published = false;
    publish(*s, v);
  }
  return computed;
}

} // namespace millrace::generation
