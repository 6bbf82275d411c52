#include "weightsync/unpacker.hpp"

#include "runtime/error.hpp"
#include "weightsync/checksum.hpp"
#include "weightsync/convert.hpp"
#include "weightsync/delta.hpp"
#include "weightsync/row_segments.hpp"
#include "weightsync/stopwatch.hpp"

#include <array>
#include <cstring>

namespace millrace::weightsync {

unpacker::unpacker(std::vector<tensor_view> tensors) : tensors_(std::move(tensors)) {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    index_[tensors_[i].name] = i;
}

void unpacker::begin(const manifest& m, const transfer_plan& plan) {
  manifest_ = &m;
  plan_ = &plan;
  load_s_ = quantise_s_ = 0;
  collected_.assign(tensors_.size(), {});
  missing_.assign(tensors_.size(), 0);
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

std::string unpacker::verify(const fetch& f, std::span<const std::byte> bytes) const {
  for (const auto& l : f.shards) {
    const auto& s = manifest_->tensors[l.tensor].shards[l.shard];
    if (checksum(bytes.subspan(l.at, s.length)) != s.checksum)
      return label(l);
  }
  return {};
}

void unpacker::land(const landing& l, const std::byte* bytes) {
  const auto& tensor = manifest_->tensors[l.tensor];
  source s{tensor, tensor.shards[l.shard], bytes};
  for (const auto& [view, c] : l.copies)
    for (std::int64_t i = 0; i < c.count; ++i)
      copy_run(s, view, c.from + i * c.from_stride, c.to + i * c.to_stride, c.length);
}

void unpacker::unpack(const fetch& f, std::span<const std::byte> bytes) {
  stopwatch watch;
  double quantising = 0;
  for (const auto& l : f.shards) {
    for (const auto& c : l.copies)
      if (plan_->collected[c.view] && collected_[c.view].empty())
        collected_[c.view].resize(static_cast<std::size_t>(tensors_[c.view].elements()));
    if (!f.in_place)
      land(l, bytes.data() + l.at);
    for (const auto& [view, c] : l.copies) {
      missing_[view] -= c.elements();
      if (plan_->collected[view] && missing_[view] == 0) {
        stopwatch q;
        quantise(view);
        quantising += q.seconds();
      }
    }
  }
  load_s_ += watch.seconds() - quantising;
  quantise_s_ += quantising;
}

std::string unpacker::rebuild(const fetch& f, std::span<const std::byte> bytes,
                              std::span<const tensor_view> base) {
  stopwatch watch;
  for (const auto& l : f.shards) {
    const auto& tensor = manifest_->tensors[l.tensor];
    const auto& s = tensor.shards[l.shard];
    auto changes = bytes.subspan(l.at, s.delta.length);
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
    land(l, rebuilt_.data());
  }
  load_s_ += watch.seconds();
  return {};
}

void unpacker::copy_run(const source& s, std::uint32_t view, std::int64_t from, std::int64_t to,
                        std::int64_t length) {
  const auto& t = tensors_[view];
  if (s.tensor.type == dtype::i8) {
    copy_i8(s, view, from, to, length);
    return;
  }
  bool collect = plan_->collected[view];
  auto type = collect ? dtype::f32 : t.type;
  auto* base = collect ? reinterpret_cast<std::byte*>(collected_[view].data()) : t.data;
  convert(s.tensor.type, s.bytes + static_cast<std::size_t>(from) * size_of(s.tensor.type), type,
          base + static_cast<std::size_t>(to) * size_of(type), static_cast<std::size_t>(length));
}

float* unpacker::scales_of(std::uint32_t view) {
  return reinterpret_cast<float*>(
    tensors_[index_.at(scale_name(tensors_[view].name))].data);
}

void unpacker::copy_i8(const source& s, std::uint32_t view, std::int64_t from, std::int64_t to,
                       std::int64_t length) {
  const auto& t = tensors_[view];
  const auto& shape = s.tensor.shape;
  auto first_row = rows_of(shape, s.piece.part).begin;
  auto target_row = t.shape.empty() ? 1 : t.elements() / t.shape[0];
  const auto* bytes = reinterpret_cast<const std::int8_t*>(s.bytes) + from;
  for_row_segments(shape, part_of(s.piece.part, from, length), [&](auto row, auto at, auto n) {
    auto scale = s.piece.scales[static_cast<std::size_t>(row - first_row)];
    auto count = static_cast<std::size_t>(n);
    if (plan_->collected[view] || t.type == dtype::f32) {
      auto* base = plan_->collected[view] ? collected_[view].data()
                                          : reinterpret_cast<float*>(t.data);
      i8_to_f32(bytes + at, base + to + at, count, scale);
    } else if (t.type == dtype::i8) {
      convert(dtype::i8, reinterpret_cast<const std::byte*>(bytes + at), dtype::i8,
              t.data + to + at, count);
      scales_of(view)[(to + at) / target_row] = scale;
    } else {
      std::array<float, 1024> some; // on the way to bf16
      auto* out = reinterpret_cast<std::uint16_t*>(t.data) + to + at;
      for (std::size_t i = 0; i < count; i += some.size()) {
        auto k = std::min(some.size(), count - i);
        i8_to_f32(bytes + at + i, some.data(), k, scale);
        f32_to_bf16(some.data(), out + i, k);
      }
    }
  });
}

void unpacker::quantise(std::uint32_t view) {
  const auto& t = tensors_[view];
  ensure(t.type == dtype::i8 && t.memory == memory_kind::host,
         [&] { return "quantising " + t.name + " on the host"; });
  auto rows = static_cast<std::size_t>(t.shape.empty() ? 1 : t.shape[0]);
  auto columns = rows == 0 ? 0 : static_cast<std::size_t>(t.elements()) / rows;
  auto* scales = scales_of(view);
  for (std::size_t r = 0; r < rows; ++r) {
    const auto* row = collected_[view].data() + r * columns;
    scales[r] = i8_scale(largest_magnitude(row, columns));
    f32_to_i8(row, reinterpret_cast<std::int8_t*>(t.data) + r * columns, columns, scales[r]);
  }
  collected_[view] = {};
}

} // namespace millrace::weightsync
