#include "weightsync/manifest.hpp"

#include "runtime/error.hpp"
#include "weightsync/checksum.hpp"

#include <map>
#include <set>

namespace millrace::weightsync {

namespace {

[[noreturn]] void reject(const tensor_entry& t, const std::string& what) {
  throw user_error("weight manifest: tensor " + t.name + ": " + what);
}

void validate_shard(const manifest& m, const tensor_entry& t, std::size_t index) {
  const auto& s = t.shards[index];
  auto name = [&] { return "shard " + std::to_string(index); };
  if (s.owner < 0 || static_cast<std::size_t>(s.owner) >= m.owners.size())
    reject(t, name() + " belongs to owner " + std::to_string(s.owner) + ", but there are "
                + std::to_string(m.owners.size()));
  if (!valid_slice(t.shape, s.part))
    reject(t, name() + " is not a slice of its shape");
  if (s.length != static_cast<std::uint64_t>(s.part.count) * size_of(t.type))
    reject(t, name() + " has " + std::to_string(s.length) + " bytes, expected "
                + std::to_string(static_cast<std::uint64_t>(s.part.count) * size_of(t.type)));
  auto region = m.owners[static_cast<std::size_t>(s.owner)].bytes;
  if (s.offset > region || s.length > region - s.offset)
    reject(t, name() + " reaches beyond its owner's " + std::to_string(region) + " bytes");
  if (s.delta.offset > region || s.delta.length > region - s.delta.offset)
    reject(t, name() + "'s changes reach beyond its owner's " + std::to_string(region) + " bytes");
  if (t.type == dtype::i8 && s.part.count > 0) {
    auto rows = rows_of(t.shape, s.part);
    if (static_cast<std::int64_t>(s.scales.size()) != rows.end - rows.begin)
      reject(t, name() + " has " + std::to_string(s.scales.size()) + " scales, expected "
                  + std::to_string(rows.end - rows.begin));
  }
}

} // namespace

std::uint64_t manifest::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& t : tensors)
    for (const auto& s : t.shards)
      sum += s.length;
  return sum;
}

std::uint64_t manifest::topology() const {
  running_checksum sum;
  auto add = [&](const auto& x) { sum.update(std::as_bytes(std::span(&x, 1))); };
  add(owners.size());
  for (const auto& t : tensors) {
    add(t.name.size());
    sum.update(std::as_bytes(std::span(t.name)));
    add(t.type);
    add(t.shape.size());
    sum.update(std::as_bytes(std::span(t.shape)));
    add(t.shards.size());
    for (const auto& s : t.shards) {
      add(s.owner);
      add(s.part.axis);
      add(s.part.begin);
      add(s.part.end);
      add(s.part.first);
      add(s.part.count);
      add(s.offset);
    }
  }
  return sum.value();
}

index_range rows_of(const tensor_shape& shape, const slice& part) {
  if (part.count == 0 || shape.empty())
    return {0, part.count};
  auto row = elements_of(shape) / shape[0];
  run_cursor at(shape, part);
  auto first = at.global() / row;
  at.advance(part.count - 1);
  return {first, at.global() / row + 1};
}

void validate(const manifest& m) {
  if (m.number < version{0})
    throw user_error("weight manifest: version " + std::to_string(m.number.value)
                     + ", expected 0 or more");
  std::set<std::string> names;
  for (const auto& t : m.tensors) {
    if (!names.insert(t.name).second)
      reject(t, "named twice");
    if (t.type > dtype::u8)
      reject(t, "unknown type " + std::to_string(static_cast<int>(t.type)));
    if (elements_of(t.shape) < 0)
      reject(t, "impossible shape");
    for (std::size_t i = 0; i < t.shards.size(); ++i)
      validate_shard(m, t, i);
  }
}

manifest merge(std::span<const manifest> ranks) {
  manifest result;
  if (ranks.empty())
    return result;
  result.number = ranks[0].number;
  result.delta_base = ranks[0].delta_base;
  std::map<std::string, std::size_t> index;
  for (const auto& m : ranks) {
    if (m.number != result.number)
      throw user_error("weight manifests of " + to_string(result.number) + " and "
                       + to_string(m.number) + " can't be merged");
    if (m.delta_base != result.delta_base)
      throw user_error("weight manifests with changes since " + to_string(result.delta_base)
                       + " and " + to_string(m.delta_base) + " can't be merged");
    auto base = static_cast<std::int32_t>(result.owners.size());
    result.owners.insert(result.owners.end(), m.owners.begin(), m.owners.end());
    for (const auto& t : m.tensors) {
      auto [it, fresh] = index.try_emplace(t.name, result.tensors.size());
      if (fresh)
        result.tensors.push_back({t.name, t.type, t.shape, {}});
      auto& into = result.tensors[it->second];
      if (into.type != t.type || into.shape != t.shape)
        reject(t, "trainer ranks disagree on its type or shape");
      for (auto s : t.shards) {
        s.owner += base;
        into.shards.push_back(std::move(s));
      }
    }
  }
  validate(result);
  return result;
}

} // namespace millrace::weightsync
