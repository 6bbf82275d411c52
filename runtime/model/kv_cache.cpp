#include "runtime/model/kv_cache.hpp"

#include "runtime/error.hpp"

#include <algorithm>

namespace millrace::model {

std::size_t block_pool::key_hash::operator()(const key& k) const noexcept {
  std::uint64_t h = k.parent * 0x9E3779B97F4A7C15U + static_cast<std::uint32_t>(k.version);
  for (const auto t : k.tokens) {
    h = (h ^ static_cast<std::uint32_t>(t)) * 0xD6E8FEB86659FD93U;
    h ^= h >> 32;
  }
  return h;
}

block_pool::block_pool(std::int32_t blocks) : blocks_(static_cast<std::size_t>(blocks)) {
  for (std::int32_t b = 0; b < blocks; ++b)
    append_free(b);
}

void block_pool::append_free(std::int32_t b) {
  auto& entry = blocks_[static_cast<std::size_t>(b)];
  entry.before = last_free_;
  entry.after = -1;
  (last_free_ >= 0 ? blocks_[static_cast<std::size_t>(last_free_)].after : first_free_) = b;
  last_free_ = b;
  ++available_;
}

void block_pool::unlink(std::int32_t b) {
  auto& entry = blocks_[static_cast<std::size_t>(b)];
  (entry.before >= 0 ? blocks_[static_cast<std::size_t>(entry.before)].after : first_free_)
    = entry.after;
  (entry.after >= 0 ? blocks_[static_cast<std::size_t>(entry.after)].before : last_free_)
    = entry.before;
  --available_;
}

std::int32_t block_pool::allocate() {
  const auto b = first_free_;
  if (b < 0)
    return -1;
  unlink(b);
  auto& entry = blocks_[static_cast<std::size_t>(b)];
  for (const auto& k : entry.keys)
    if (const auto known = known_.find(k); known != known_.end() && known->second.block == b)
      known_.erase(known);
  entry.keys.clear();
  entry.references = 1;
  return b;
}

void block_pool::retain(std::int32_t b) {
  auto& entry = blocks_[static_cast<std::size_t>(b)];
  if (entry.references++ == 0)
    unlink(b);
}

void block_pool::release(std::int32_t b) {
  auto& entry = blocks_[static_cast<std::size_t>(b)];
  ensure(entry.references > 0, [&] { return "KV block " + std::to_string(b) + " freed twice"; });
  if (--entry.references == 0)
    append_free(b);
}

std::optional<block_pool::match> block_pool::find(content_id parent,
                                                  std::span<const std::int32_t> tokens,
                                                  version v) const {
  const auto known = known_.find({parent, v.value, {tokens.begin(), tokens.end()}});
  if (known == known_.end())
    return {};
  return known->second;
}

block_pool::content_id block_pool::publish(content_id parent, std::span<const std::int32_t> tokens,
                                           version v, std::int32_t b) {
  key k{parent, v.value, {tokens.begin(), tokens.end()}};
  const auto [at, added] = known_.try_emplace(std::move(k), match{b, next_content_});
  if (added) {
    ++next_content_;
    blocks_[static_cast<std::size_t>(b)].keys.push_back(at->first);
  }
  return at->second.content;
}

void block_pool::forget_all() {
  known_.clear();
  for (auto& b : blocks_)
    b.keys.clear();
}

} // namespace millrace::model
