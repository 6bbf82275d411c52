#include "runtime/model/device_batch.hpp"

#include "runtime/model/kv_cache.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace millrace::model {
namespace {

using numbers = std::vector<std::int64_t>;

std::int64_t last_position(const token_run& r) {
  return r.start + static_cast<std::int64_t>(r.tokens.size()) - 1;
}

/// Host numbers that become tensors of one device buffer.
class parcel {
public:
  /// Index of what was added.
  std::size_t add(const numbers& values) {
    parts_.push_back({static_cast<std::int64_t>(all_.size()),
                      static_cast<std::int64_t>(values.size())});
    all_.insert(all_.end(), values.begin(), values.end());
    return parts_.size() - 1;
  }
  void send(c10::Device device) {
    auto host = at::empty({static_cast<std::int64_t>(all_.size())},
                          at::TensorOptions(at::kLong).pinned_memory(device.is_cuda()));
    std::memcpy(host.data_ptr(), all_.data(), all_.size() * sizeof(std::int64_t));
    there_ = host.to(device, /*non_blocking=*/true);
  }
  [[nodiscard]] at::Tensor at(std::size_t part) const {
    return there_.narrow(0, parts_[part].first, parts_[part].second);
  }

private:
  numbers all_;
  std::vector<std::pair<std::int64_t, std::int64_t>> parts_;
  at::Tensor there_;
};

/// [rows, columns]: whether column ≤ the row's number, of `last` [rows].
at::Tensor up_to(const at::Tensor& last, std::int64_t columns) {
  return at::arange(columns, last.options()).unsqueeze(0) <= last.unsqueeze(1);
}

/// See device_batch::stale.
void add_stale(const token_run& r, const std::set<std::int32_t>& copied, numbers& stale) {
  const auto last = last_position(r), begin = last / block_tokens * block_tokens;
  const auto b = r.blocks[last / block_tokens];
  if (r.start <= begin || copied.contains(b))
    for (auto place = last % block_tokens + 1; place < block_tokens; ++place)
      stale.push_back(std::int64_t{b} * block_tokens + place);
}

} // namespace

device_batch lay_out(std::span<const token_run> runs, std::int32_t padding,
                     const std::set<std::int32_t>& copied, c10::Device device) {
  std::vector<std::size_t> order;
  for (const bool single : {true, false})
    for (std::size_t i = 0; i < runs.size(); ++i)
      if ((runs[i].tokens.size() == 1) == single)
        order.push_back(i);
  device_batch b;
  numbers tokens, positions, slots, stale, lasts(runs.size());
  for (const auto i : order) {
    const auto& r = runs[i];
    const auto rows = static_cast<std::int64_t>(r.tokens.size());
    if (rows == 1) {
      ++b.singles;
      b.pages = std::max<std::int64_t>(b.pages, last_position(r) / block_tokens + 1);
    } else
      b.prompts.push_back({static_cast<std::int64_t>(tokens.size()), rows, r.start + rows, {}, {}});
    for (std::int64_t p = r.start; p <= last_position(r); ++p) {
      positions.push_back(p);
      slots.push_back(std::int64_t{r.blocks[p / block_tokens]} * block_tokens + p % block_tokens);
    }
    add_stale(r, copied, stale);
    tokens.insert(tokens.end(), r.tokens.begin(), r.tokens.end());
    lasts[i] = static_cast<std::int64_t>(tokens.size()) - 1;
  }
  numbers wanted, tables(static_cast<std::size_t>(b.singles * b.pages), padding);
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (runs[i].wants_logits)
      wanted.push_back(lasts[i]);
  parcel all;
  std::vector<std::size_t> prompts;
  for (std::size_t k = 0; k < order.size(); ++k) {
    const auto& r = runs[order[k]];
    const auto* end = r.blocks + last_position(r) / block_tokens + 1;
    if (static_cast<std::int64_t>(k) < b.singles)
      std::copy(r.blocks, end, tables.begin() + static_cast<std::int64_t>(k) * b.pages);
    else // what begins its sequence attends to its own rows only
      prompts.push_back(all.add(r.start > 0 ? numbers(r.blocks, end) : numbers()));
  }
  const auto t = all.add(tokens), p = all.add(positions), s = all.add(slots), w = all.add(wanted),
             table = all.add(tables), hidden = all.add(stale);
  all.send(device);
  b.tokens = all.at(t);
  b.positions = all.at(p);
  b.slots = all.at(s);
  b.wanted = all.at(w);
  b.tables = all.at(table);
  b.stale = all.at(hidden);
  if (b.singles > 0)
    b.seen = up_to(b.positions.narrow(0, 0, b.singles), b.pages * block_tokens)
               .unsqueeze(1).unsqueeze(1);
  for (std::size_t i = 0; i < b.prompts.size(); ++i) {
    auto& one = b.prompts[i];
    if (one.context == one.rows)
      continue;
    one.blocks = all.at(prompts[i]);
    one.seen = up_to(b.positions.narrow(0, one.row, one.rows), one.context);
  }
  return b;
}

} // namespace millrace::model
