#include "weightsync/unpacker.hpp"

#include "runtime/error.hpp"
#include "weightsync/checksum.hpp"
#include "weightsync/delta.hpp"
#include "weightsync/row_segments.hpp"
#include "weightsync/stopwatch.hpp"

#include <cstring>

namespace millrace::weightsync {

namespace {

memory_kind memory_of(const std::vector<tensor_view>& tensors) {
  auto kind = tensors.empty() ? memory_kind::host : tensors[0].memory;
  for (const auto& t : tensors)
    if (t.memory != kind)
      throw user_error("weight transfer: tensors " + tensors[0].name + " and " + t.name
                       + " are in different kinds of memory");
  return kind;
}

} // namespace

unpacker::unpacker(std::vector<tensor_view> tensors)
  : tensors_(std::move(tensors)), device_(&device_for(memory_of(tensors_))) {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    index_[tensors_[i].name] = i;
}

void unpacker::begin(const manifest& m, const transfer_plan& plan) {
  manifest_ = &m;
  plan_ = &plan;
  verify_s_ = load_s_ = quantise_s_ = 0;
  collected_.assign(tensors_.size(), {});
  missing_.assign(tensors_.size(), 0);
  complete_.clear();
  scales_.clear();
  for (const auto& f : plan.fetches)
    for (const auto& l : f.shards)
      for (const auto& c : l.copies)
        missing_[c.view] += c.elements.elements();
}

std::string unpacker::label(const landing& l) const {
  const auto& tensor = manifest_->tensors[l.tensor];
  return "shard " + std::to_string(l.shard) + " of " + tensor.name + " from trainer rank "
         + std::to_string(tensor.shards[l.shard].owner);
}

std::vector<std::string> unpacker::verify(std::span<const arrival> came) const {
  std::vector<std::span<const std::byte>> blocks;
  for (const auto& a : came)
    for (const auto& l : a.what->shards)
      blocks.push_back(
        a.bytes.subspan(l.at, manifest_->tensors[l.tensor].shards[l.shard].length));
  auto sums = device_->checksums(blocks);
  std::vector<std::string> wrong(came.size());
  auto sum = sums.begin();
  for (std::size_t i = 0; i < came.size(); ++i)
    for (const auto& l : came[i].what->shards)
      if (*sum++ != manifest_->tensors[l.tensor].shards[l.shard].checksum && wrong[i].empty())
        wrong[i] = label(l);
  return wrong;
}

std::vector<std::string> unpacker::land(std::span<const arrival> came) {
  stopwatch watch;
  auto wrong = verify(came);
  verify_s_ += watch.lap();
  copies_.clear();
  for (std::size_t i = 0; i < came.size(); ++i) {
    if (!wrong[i].empty())
      continue;
    if (!came[i].what->in_place)
      for (const auto& l : came[i].what->shards)
        add_copies(l, came[i].bytes.data() + l.at);
    count_down(*came[i].what);
  }
  device_->copy(copies_);
  load_s_ += watch.lap();
  quantise_complete();
  quantise_s_ += watch.lap();
  return wrong;
}

// Notes what a shard brings to be copied.
void unpacker::add_copies(const landing& l, const std::byte* bytes) {
  const auto& tensor = manifest_->tensors[l.tensor];
  for (const auto& c : l.copies) {
    bool collect = plan_->collected[c.view];
    if (collect && !collected_[c.view])
      collected_[c.view] = device_->allocate(
        static_cast<std::size_t>(tensors_[c.view].elements()) * sizeof(float),
        tensors_[c.view].data);
    if (tensor.type == dtype::i8)
      add_scaled_copies(l, bytes, c);
    else
      copies_.push_back({bytes, collect ? collected_[c.view].get() : tensors_[c.view].data,
                         tensor.type, collect ? dtype::f32 : tensors_[c.view].type, c.elements});
  }
}

// i8 comes with a scale for each row, so each row is a copy of its own.
void unpacker::add_scaled_copies(const landing& l, const std::byte* bytes, const shard_copy& c) {
  const auto& tensor = manifest_->tensors[l.tensor];
  const auto& s = tensor.shards[l.shard];
  const auto& t = tensors_[c.view];
  bool collect = plan_->collected[c.view];
  auto type = collect ? dtype::f32 : t.type;
  auto* base = collect ? collected_[c.view].get() : t.data;
  auto first_row = rows_of(tensor.shape, s.part).begin;
  auto target_row = t.shape.empty() ? 1 : t.elements() / t.shape[0];
  for (std::int64_t i = 0; i < c.elements.count; ++i) {
    auto from = c.elements.from + i * c.elements.from_stride;
    auto to = c.elements.to + i * c.elements.to_stride;
    auto part = part_of(s.part, from, c.elements.length);
    for_row_segments(tensor.shape, part, [&](auto row, auto at, auto n) {
      auto scale = s.scales[static_cast<std::size_t>(row - first_row)];
      copies_.push_back({bytes, base, dtype::i8, type, {from + at, to + at, n}, scale});
      if (type != dtype::i8)
        return;
      auto& scales = scales_[c.view];
      scales.resize(static_cast<std::size_t>(t.shape[0]));
      scales[static_cast<std::size_t>((to + at) / target_row)] = scale;
    });
  }
}

void unpacker::count_down(const fetch& f) {
  for (const auto& l : f.shards)
    for (const auto& c : l.copies) {
      missing_[c.view] -= c.elements.elements();
      if (missing_[c.view] == 0)
        complete_.push_back(c.view);
    }
}

float* unpacker::scales_of(std::uint32_t view) {
  return reinterpret_cast<float*>(tensors_[index_.at(scale_name(tensors_[view].name))].data);
}

// A tensor whose scales could only be known, or written, when all of it has come.
void unpacker::quantise_complete() {
  std::vector<row_quantisation> tasks;
  for (auto view : complete_) {
    const auto& t = tensors_[view];
    auto rows = t.shape.empty() ? 1 : t.shape[0];
    if (plan_->collected[view] && collected_[view])
      tasks.push_back({reinterpret_cast<const float*>(collected_[view].get()), t.data, t.type,
                       scales_of(view), rows, rows == 0 ? 0 : t.elements() / rows});
    auto scales = scales_.find(view);
    if (scales != scales_.end())
      device_->upload(std::as_bytes(std::span(scales->second)),
                      reinterpret_cast<std::byte*>(scales_of(view)));
  }
  device_->quantise(tasks);
  for (auto view : complete_)
    collected_[view] = {};
  complete_.clear();
}

std::string unpacker::rebuild(const arrival& came, std::span<const tensor_view> base) {
  stopwatch watch;
  for (const auto& l : came.what->shards) {
    const auto& tensor = manifest_->tensors[l.tensor];
    const auto& s = tensor.shards[l.shard];
    auto changes = came.bytes.subspan(l.at, s.delta.length);
    if (checksum(changes) != s.delta.checksum)
      return "the changes of " + label(l);
    auto size = size_of(tensor.type);
    rebuilt_.resize(s.length);
    for (const auto& [view, c] : l.copies)
      for (std::int64_t i = 0; i < c.count; ++i)
        std::memcpy(rebuilt_.data() + static_cast<std::size_t>(c.from + i * c.from_stride) * size,
                    base[view].data + static_cast<std::size_t>(c.to + i * c.to_stride) * size,
                    static_cast<std::size_t>(c.length) * size);
    if (!apply_delta(changes, size, rebuilt_) || checksum(rebuilt_) != s.checksum)
      return label(l) + ", rebuilt from its changes";
    copies_.clear();
    add_copies(l, rebuilt_.data());
    device_->copy(copies_);
  }
  count_down(*came.what);
  load_s_ += watch.lap();
  quantise_complete();
  quantise_s_ += watch.lap();
  return {};
}

} // namespace millrace::weightsync
