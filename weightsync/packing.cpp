#include "weightsync/packing.hpp"

#include "runtime/error.hpp"
#include "weightsync/dtype_names.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace millrace::weightsync {

namespace {

constexpr std::uint64_t alignment = 64; // of shards: a cache line, and what vector units like

bool covers_all(const tensor_shape& shape, const slice& s) {
  return s.first == 0 && s.count == elements_of(shape);
}

// The global element numbers of a slice that is one run.
index_range flat_range(const tensor_shape& shape, const slice& s) {
  run_cursor at(shape, s);
  auto begin = s.count == 0 ? 0 : at.global();
  return {begin, begin + s.count};
}

std::vector<slice> cut_axis(const tensor_shape& shape, const slice& part, std::int32_t axis,
                            std::span<const slice> readers) {
  auto lo = part.axis == axis ? part.begin : 0;
  auto hi = part.axis == axis ? part.end : shape[static_cast<std::size_t>(axis)];
  std::set<std::int64_t> cuts = {lo, hi};
  for (const auto& r : readers)
    if (r.axis == axis)
      for (auto x : {r.begin, r.end})
        if (lo < x && x < hi)
          cuts.insert(x);
  std::vector<slice> pieces;
  for (auto it = cuts.begin(); std::next(it) != cuts.end(); ++it)
    pieces.push_back(along(shape, axis, *it, *std::next(it)));
  return pieces;
}

std::vector<slice> cut_flat(const tensor_shape& shape, const slice& part,
                            std::span<const slice> readers) {
  auto own = flat_range(shape, part);
  std::set<std::int64_t> cuts = {own.begin, own.end};
  for (const auto& r : readers) {
    if (r.axis > 0)
      continue;
    auto range = flat_range(shape, r);
    for (auto x : {range.begin, range.end})
      if (own.begin < x && x < own.end)
        cuts.insert(x);
  }
  std::vector<slice> pieces;
  for (auto it = cuts.begin(); std::next(it) != cuts.end(); ++it)
    pieces.push_back(part_of(part, *it - own.begin, *std::next(it) - *it));
  return pieces;
}

// Elements of a block: as many whole rows as fit, or a part of one row.
std::int64_t block_elements(const tensor_shape& shape, const slice& piece, std::size_t limit) {
  auto most = std::max<std::int64_t>(1, static_cast<std::int64_t>(limit));
  auto n = elements_of(shape);
  auto row = shape.empty() || n == 0 ? 1 : n / shape[0];
  if (piece.axis > 0)
    row = row / shape[static_cast<std::size_t>(piece.axis)] * (piece.end - piece.begin);
  return row > 0 && row <= most ? most / row * row : most;
}

class packer {
public:
  packer(const layout& held, std::span<const tensor_view> tensors, const packing_options& options)
    : held_(held), tensors_(tensors), options_(options) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      views_[tensors[i].name] = i;
    for (const auto& reader : options.readers)
      for (const auto& p : reader)
        readers_[p.tensor].push_back(p.part);
  }

  packing run() {
    for (std::size_t i = 0; i < held_.size(); ++i)
      place(i);
    return std::move(result_);
  }

private:
  [[noreturn]] static void reject(const placement& p, const std::string& what) {
    throw user_error("publishing weights: tensor " + p.tensor + ": " + what);
  }

  const tensor_view& view_of(const placement& p) {
    auto it = views_.find(p.local);
    if (it == views_.end())
      reject(p, "the trainer has no tensor " + p.local);
    const auto& v = tensors_[it->second];
    if (p.local_offset < 0 || p.local_offset + p.part.count > v.elements())
      reject(p, p.local + " has " + std::to_string(v.elements()) + " elements, expected "
                  + std::to_string(p.local_offset + p.part.count) + " or more");
    result_.views.push_back(it->second);
    return v;
  }

  dtype wire_type(const placement& p, const tensor_view& v) {
    auto type = options_.wire_type ? options_.wire_type(p, v.type) : v.type;
    if (type == v.type || (v.type == dtype::f32 && type == dtype::bf16)
        || (v.type == dtype::bf16 && type == dtype::f32)
        || (v.type == dtype::f32 && type == dtype::i8))
      return type;
    reject(p, "it is " + to_string(v.type) + ", which can't be sent as " + to_string(type));
  }

  // A tensor of which this rank holds several slices (fused parts) is one entry.
  std::size_t entry_of(const placement& p, dtype type) {
    auto [it, fresh] = entries_.try_emplace(p.tensor, result_.outline.tensors.size());
    if (fresh)
      result_.outline.tensors.push_back({p.tensor, type, p.shape, {}});
    const auto& t = result_.outline.tensors[it->second];
    if (t.type != type || t.shape != p.shape)
      reject(p, "its slices disagree on type or shape");
    return it->second;
  }

  void place(std::size_t index) {
    const auto& p = held_[index];
    const auto& view = view_of(p);
    auto type = wire_type(p, view);
    auto tensor = entry_of(p, type);
    if (p.part.count == 0)
      return;
    auto readers = readers_.find(p.tensor);
    auto pieces = readers == readers_.end() ? std::vector{p.part}
                                            : cut(p.shape, p.part, readers->second);
    for (const auto& piece : pieces) {
      auto step = block_elements(p.shape, piece, options_.shard_bytes / size_of(type));
      for (std::int64_t first = 0; first < piece.count; first += step)
        add(index, tensor, part_of(piece, first, std::min(step, piece.count - first)));
    }
  }

  void add(std::size_t placement_index, std::size_t tensor, const slice& part) {
    const auto& p = held_[placement_index];
    auto& entry = result_.outline.tensors[tensor];
    shard s;
    s.part = part;
    s.offset = (result_.bytes + alignment - 1) / alignment * alignment;
    s.length = static_cast<std::uint64_t>(part.count) * size_of(entry.type);
    result_.bytes = s.offset + s.length;
    auto copies = intersect(p.shape, p.part, part);
    for (auto& c : copies)
      c.from += p.local_offset;
    result_.pieces.push_back({placement_index, tensor, entry.shards.size(), std::move(copies)});
    entry.shards.push_back(std::move(s));
  }

  const layout& held_;
  std::span<const tensor_view> tensors_;
  const packing_options& options_;
  std::map<std::string, std::size_t> views_;
  std::map<std::string, std::size_t> entries_;
  std::map<std::string, std::vector<slice>> readers_;
  packing result_;
};

} // namespace

std::vector<slice> cut(const tensor_shape& shape, const slice& part,
                       std::span<const slice> readers) {
  if (part.count == 0)
    return {part};
  for (const auto& r : readers) {
    if (r.axis < 1 || covers_all(shape, r))
      continue;
    bool whole_part = part.axis == r.axis
                      && part == along(shape, part.axis, part.begin, part.end);
    if (whole_part || covers_all(shape, part))
      return cut_axis(shape, part, r.axis, readers);
  }
  if (part.axis <= 0)
    return cut_flat(shape, part, readers);
  return {part};
}

packing make_packing(const layout& held, std::span<const tensor_view> tensors,
                     const packing_options& options) {
  return packer(held, tensors, options).run();
}

} // namespace millrace::weightsync
