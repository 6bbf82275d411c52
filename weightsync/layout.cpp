#include "weightsync/layout.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace millrace::weightsync {

layout replicated(std::span<const tensor_view> views) {
  std::set<std::string> scales;
  for (const auto& v : views)
    if (v.type == dtype::i8 || v.type == dtype::f8_e4m3)
      scales.insert(scale_name(v.name));
  layout result;
  for (const auto& v : views)
    if (!scales.contains(v.name))
      result.push_back({v.name, v.shape, whole(v.shape), v.name, 0});
  return result;
}

layout flat_sharded(std::span<const tensor_view> whole_tensors, std::int32_t rank,
                    std::int32_t ranks) {
  layout result;
  for (const auto& v : whole_tensors) {
    auto mine = split(v.elements(), 1, rank, ranks);
    if (mine.begin < mine.end)
      result.push_back({v.name, v.shape, part_of(whole(v.shape), mine.begin, mine.end - mine.begin),
                        v.name, 0});
  }
  return result;
}

std::vector<local_tensor> local_tensors(const layout& l) {
  std::vector<local_tensor> result;
  std::map<std::string, std::size_t> index;
  for (const auto& p : l) {
    auto shape = p.shape;
    if (p.part.axis >= 0)
      shape[static_cast<std::size_t>(p.part.axis)] = p.part.end - p.part.begin;
    if (elements_of(shape) != p.part.count) // part of a sequence has no shape but its length
      shape = {p.part.count};
    auto [it, fresh] = index.try_emplace(p.local, result.size());
    if (fresh) {
      result.push_back({p.local, p.local_offset + p.part.count, shape});
      continue;
    }
    auto& t = result[it->second];
    t.elements = std::max(t.elements, p.local_offset + p.part.count);
    t.shape[0] += shape[0];
  }
  return result;
}

} // namespace millrace::weightsync
