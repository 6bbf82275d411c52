#include "weightsync/publisher.hpp"

#include "runtime/error.hpp"
#include "weightsync/checksum.hpp"
#include "weightsync/convert.hpp"
#include "weightsync/delta.hpp"
#include "weightsync/row_segments.hpp"
#include "weightsync/stopwatch.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <thread>

namespace millrace::weightsync {

namespace {

// Below this another thread costs more than it brings.
constexpr std::uint64_t shared_work_bytes = 8U << 20U;

// Below this the processor's caches may still have the published bytes when they are read.
constexpr std::uint64_t one_pass_bytes = 32U << 20U;

} // namespace

publisher::publisher(transport& carrier, layout held, publisher_options options)
  : carrier_(carrier), held_(std::move(held)), options_(std::move(options)),
    machine_(options_.slots, options_.lease_s), slots_(options_.slots) {}

publisher::~publisher() = default;

bool publisher::takes(memory_kind kind) const {
  const auto sent_as_i8 = [this](const placement& p) {
    return options_.wire_type && options_.wire_type(p, dtype::f32) == dtype::i8;
  };
  return kind == memory_kind::host
         || (!options_.delta && std::none_of(held_.begin(), held_.end(), sent_as_i8)
             && carrier_.exposes(kind));
}

void publisher::prepare(std::span<const tensor_view> tensors) {
  if (!packing_) {
    packing_ = make_packing(held_, tensors,
                            {options_.shard_bytes, options_.wire_type, options_.readers});
    memory_ = tensors.empty() ? memory_kind::host : tensors[0].memory;
  }
  for (std::size_t i = 0; i < held_.size(); ++i) {
    const auto& p = held_[i];
    auto view = packing_->views[i];
    ensure(view < tensors.size() && tensors[view].name == p.local,
           [&] { return "the list of published tensors changed at " + p.local; });
    if (tensors[view].memory != memory_)
      throw user_error("publishing weights: tensor " + p.local
                       + " is in another kind of memory than the first one");
  }
  if (memory_ == memory_kind::host)
    return;
  if (options_.delta)
    throw user_error("publishing weights: changes only (delta) is for host memory");
  for (const auto& t : packing_->outline.tensors)
    if (t.type == dtype::i8)
      throw user_error("publishing weights: tensor " + t.name + " in GPU memory can't be sent as "
                       "i8; let the receivers quantise");
}

std::optional<manifest> publisher::publish(version v, std::span<const tensor_view> tensors,
                                           double now, publish_report* report) {
  prepare(tensors);
  std::optional<std::size_t> slot;
  {
    std::lock_guard lock(mutex_);
    slot = machine_.begin(v, now);
  }
  if (!slot)
    return std::nullopt;
  publish_report own;
  try {
    if (!slots_[*slot])
      slots_[*slot] = carrier_.expose(packing_->bytes + (options_.delta ? packing_->bytes / 2 : 0),
                                      memory_);
    auto m = fill(*slot, v, tensors, report ? *report : own);
    std::lock_guard lock(mutex_);
    machine_.commit(*slot, now);
    current_ = m;
    return m;
  } catch (...) {
    std::lock_guard lock(mutex_);
    machine_.abandon(*slot);
    throw;
  }
}

// For each placement that goes as i8, the scale of each row that it touches.
std::vector<std::vector<float>>
publisher::row_scales(std::span<const tensor_view> tensors) const {
  std::vector<std::vector<float>> result(held_.size());
  for (const auto& piece : packing_->pieces) {
    auto& scales = result[piece.placement];
    const auto& p = held_[piece.placement];
    const auto& view = tensors[packing_->views[piece.placement]];
    auto type = packing_->outline.tensors[piece.tensor].type;
    if (type != dtype::i8 || view.type == dtype::i8 || !scales.empty())
      continue;
    auto rows = rows_of(p.shape, p.part);
    scales.assign(static_cast<std::size_t>(rows.end - rows.begin), 0);
    const auto* values = reinterpret_cast<const float*>(view.data) + p.local_offset;
    for_row_segments(p.shape, p.part, [&](auto row, auto at, auto n) {
      auto& s = scales[static_cast<std::size_t>(row - rows.begin)];
      s = std::max(s, largest_magnitude(values + at, static_cast<std::size_t>(n)));
    });
    for (auto& s : scales)
      s = i8_scale(s);
  }
  return result;
}

// Notes what makes up one shard, with a copy for each row where rows have scales.
void publisher::add_copies(const packing::piece& piece, const tensor_view& view, dtype type,
                           shard& s, std::span<const float> row_scales, std::byte* to,
                           std::vector<typed_copy>& copies) const {
  if (row_scales.empty()) {
    for (const auto& c : piece.copies)
      copies.push_back({view.data, to, view.type, type, c});
    return;
  }
  const auto& p = held_[piece.placement];
  auto first_row = rows_of(p.shape, p.part).begin;
  for (const auto& c : piece.copies)
    for (std::int64_t i = 0; i < c.count; ++i) {
      auto from = c.from + i * c.from_stride;
      auto into = c.to + i * c.to_stride;
      for_row_segments(p.shape, part_of(s.part, into, c.length), [&](auto row, auto at, auto n) {
        copies.push_back({view.data, to, view.type, type, {from + at, into + at, n},
                          row_scales[static_cast<std::size_t>(row - first_row)]});
      });
    }
  auto rows = rows_of(p.shape, s.part);
  s.scales.assign(row_scales.begin() + (rows.begin - first_row),
                  row_scales.begin() + (rows.end - first_row));
}

// One thread's share of the work of publishing.
struct publisher::share {
  std::size_t begin = 0, end = 0; // of the pieces
  publish_report cost;
  std::vector<std::byte> changes; // since the version before, to come behind the shards
  std::vector<shard_delta*> deltas; // in them
  std::exception_ptr error;
};

// Pieces of about as many bytes for each thread.
std::vector<publisher::share> publisher::shares() const {
  const auto& pieces = packing_->pieces;
  bool alone = memory_ != memory_kind::host || packing_->bytes < shared_work_bytes;
  auto threads = alone ? 1 : std::max<std::size_t>(options_.threads, 1);
  std::vector<share> result(threads);
  std::uint64_t bytes = 0;
  std::size_t at = 0;
  for (std::size_t k = 0; k < threads; ++k) {
    result[k].begin = at;
    for (auto until = packing_->bytes / threads * (k + 1);
         at < pieces.size() && (bytes < until || k + 1 == threads); ++at)
      bytes += packing_->outline.tensors[pieces[at].tensor].shards[pieces[at].shard].length;
    result[k].end = at;
  }
  return result;
}

// Notes what changed in a shard since the version in slot `before`.
void publisher::add_delta(std::size_t before, dtype type, shard& s,
                          std::span<const std::byte> region, std::size_t space, share& mine) const {
  auto used = mine.changes.size();
  ensure(used <= space, "the changes of a version overran their room");
  auto old = slots_[before]->memory().subspan(s.offset, s.length);
  if (!encode_delta(old, region.subspan(s.offset, s.length), size_of(type),
                    std::min<std::size_t>(s.length, space - used), mine.changes))
    return;
  auto fresh = std::span<const std::byte>(mine.changes).subspan(used);
  s.delta = {used, fresh.size(), checksum(fresh)};
  mine.deltas.push_back(&s.delta);
}

// Copies pieces into the slot and sums each up while it is in the cache.
void publisher::fill_share(std::span<const tensor_view> tensors,
                           std::span<const std::vector<float>> scales, std::span<std::byte> memory,
                           std::optional<std::size_t> before, manifest& m, share& mine) const {
  auto& device = device_for(memory_);
  auto space = (memory.size() - packing_->bytes) / shares().size();
  const auto& pieces = packing_->pieces;
  bool large = packing_->bytes >= one_pass_bytes;
  stopwatch watch;
  for (auto begin = mine.begin; begin < mine.end; begin += device.batch()) {
    auto end = std::min(mine.end, begin + device.batch());
    std::vector<typed_copy> copies;
    std::vector<std::size_t> counts;
    std::vector<std::span<const std::byte>> blocks;
    for (auto i = begin; i < end; ++i) {
      auto before_it = copies.size();
      auto& entry = m.tensors[pieces[i].tensor];
      auto& s = entry.shards[pieces[i].shard];
      blocks.push_back(memory.subspan(s.offset, s.length));
      add_copies(pieces[i], tensors[packing_->views[pieces[i].placement]], entry.type, s,
                 scales[pieces[i].placement], memory.data() + s.offset, copies);
      counts.push_back(copies.size() - before_it);
      mine.cost.bytes += s.length;
    }
    std::vector<std::uint64_t> sums;
    if (large) {
      sums = device.copy_and_sum(copies, counts, blocks);
      mine.cost.copy_s += watch.lap();
    } else {
      device.copy(copies);
      mine.cost.copy_s += watch.lap();
      sums = device.checksums(blocks);
      mine.cost.checksum_s += watch.lap();
    }
    for (auto i = begin; i < end; ++i) {
      auto& entry = m.tensors[pieces[i].tensor];
      auto& s = entry.shards[pieces[i].shard];
      s.checksum = sums[i - begin];
      if (before)
        add_delta(*before, entry.type, s, memory, space, mine);
    }
    mine.cost.delta_s += watch.lap();
  }
}

manifest publisher::fill(std::size_t slot, version v, std::span<const tensor_view> tensors,
                         publish_report& report) {
  auto memory = slots_[slot]->memory();
  auto m = packing_->outline;
  m.number = v;
  m.owners = {slots_[slot]->region()};
  std::optional<std::size_t> before;
  if (options_.delta) {
    std::lock_guard lock(mutex_); // only this thread can take the current slot away
    before = machine_.current_slot();
    m.delta_base = machine_.current();
  }
  report = {};
  stopwatch watch;
  auto scales = row_scales(tensors);
  report.copy_s = watch.lap();
  auto work = shares();
  auto run = [&](share& mine) {
    try {
      fill_share(tensors, scales, memory, before, m, mine);
    } catch (...) {
      mine.error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t k = 1; k < work.size(); ++k)
      others.emplace_back(run, std::ref(work[k]));
    run(work[0]);
  }
  auto used = packing_->bytes;
  for (auto& mine : work) {
    if (mine.error)
      std::rethrow_exception(mine.error);
    auto n = static_cast<double>(work.size());
    report.bytes += mine.cost.bytes;
    report.copy_s += mine.cost.copy_s / n;
    report.checksum_s += mine.cost.checksum_s / n;
    report.delta_s += mine.cost.delta_s / n;
    report.delta_bytes += mine.changes.size();
    for (auto* d : mine.deltas)
      d->offset += used;
    std::copy(mine.changes.begin(), mine.changes.end(),
              memory.begin() + static_cast<std::ptrdiff_t>(used));
    used += mine.changes.size();
  }
  return m;
}

std::optional<manifest> publisher::current() const {
  std::lock_guard lock(mutex_);
  return current_;
}

double publisher::blocked_until(double now) const {
  std::lock_guard lock(mutex_);
  return machine_.blocked_until(now);
}

lease publisher::acquire(const std::string& receiver, version v, double now) {
  std::lock_guard lock(mutex_);
  return machine_.acquire(receiver, v, now);
}

bool publisher::renew(lease_id id, double now) {
  std::lock_guard lock(mutex_);
  return machine_.renew(id, now);
}

bool publisher::release(lease_id id, double now) {
  std::lock_guard lock(mutex_);
  return machine_.release(id, now);
}

void publisher::forget(const std::string& receiver, double now) {
  std::lock_guard lock(mutex_);
  machine_.forget(receiver, now);
}

std::vector<held_lease> publisher::tick(double now) {
  std::lock_guard lock(mutex_);
  return machine_.tick(now);
}

void publisher::acknowledge(const std::string& receiver, version v) {
  std::lock_guard lock(mutex_);
  machine_.acknowledge(receiver, v);
}

version publisher::acknowledged(const std::string& receiver) const {
  std::lock_guard lock(mutex_);
  return machine_.acknowledged(receiver);
}

std::size_t publisher::active_leases() const {
  std::lock_guard lock(mutex_);
  return machine_.leases().size();
}

} // namespace millrace::weightsync
