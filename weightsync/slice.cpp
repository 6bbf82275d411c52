#include "weightsync/slice.hpp"

#include "runtime/error.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace millrace::weightsync {

namespace {

std::int64_t product(const tensor_shape& shape, std::size_t from, std::size_t to) {
  std::int64_t n = 1;
  for (auto i = from; i < to; ++i)
    n *= shape[i];
  return n;
}

std::int64_t inner_of(const tensor_shape& shape, std::int32_t axis) {
  return product(shape, static_cast<std::size_t>(axis) + 1, shape.size());
}

} // namespace

slice whole(const tensor_shape& shape) { return {-1, 0, 0, 0, product(shape, 0, shape.size())}; }

slice along(const tensor_shape& shape, std::int32_t axis, std::int64_t begin, std::int64_t end) {
  ensure(axis >= 0 && static_cast<std::size_t>(axis) < shape.size() && 0 <= begin && begin <= end
             && end <= shape[static_cast<std::size_t>(axis)],
         [&] {
           return "slice [" + std::to_string(begin) + ", " + std::to_string(end) + ") of axis "
                  + std::to_string(axis) + " is not in the tensor";
         });
  auto outer = product(shape, 0, static_cast<std::size_t>(axis));
  return {axis, begin, end, 0, outer * (end - begin) * inner_of(shape, axis)};
}

slice part_of(const slice& s, std::int64_t first, std::int64_t count) {
  ensure(first >= 0 && count >= 0 && first + count <= s.count, [&] {
    return "elements [" + std::to_string(first) + ", " + std::to_string(first + count)
           + ") of a slice with " + std::to_string(s.count);
  });
  auto result = s;
  result.first += first;
  result.count = count;
  return result;
}

index_range split(std::int64_t length, std::int64_t unit, std::int32_t index, std::int32_t parts) {
  ensure(unit > 0 && length % unit == 0 && parts > 0 && index >= 0 && index < parts, [&] {
    return "part " + std::to_string(index) + " of " + std::to_string(parts) + " of "
           + std::to_string(length) + " in units of " + std::to_string(unit);
  });
  auto units = length / unit;
  return {units * index / parts * unit, units * (index + 1) / parts * unit};
}

std::int64_t elements_of(const tensor_shape& shape) {
  // Far below 2^63, so that byte counts and products of two such numbers with small factors fit.
  constexpr auto limit = std::int64_t{1} << 48;
  std::int64_t n = 1;
  for (auto d : shape) {
    if (d < 0 || d > limit || (d > 0 && n > limit / d))
      return -1;
    n *= d;
  }
  return n;
}

bool valid_slice(const tensor_shape& shape, const slice& s) {
  auto n = elements_of(shape);
  if (n < 0 || s.first < 0 || s.count < 0 || s.first > n || s.count > n - s.first)
    return false;
  if (s.axis == -1)
    return s.begin == 0 && s.end == 0;
  if (s.axis < 0 || static_cast<std::size_t>(s.axis) >= shape.size() || s.begin < 0
      || s.begin > s.end || s.end > shape[static_cast<std::size_t>(s.axis)])
    return false;
  return s.first + s.count <= along(shape, s.axis, s.begin, s.end).count;
}

run_cursor::run_cursor(const tensor_shape& shape, const slice& s)
  : first_(s.first), last_(s.first + s.count), at_(s.first) {
  if (s.axis == -1) {
    run_ = period_ = product(shape, 0, shape.size());
    return;
  }
  auto inner = inner_of(shape, s.axis);
  run_ = (s.end - s.begin) * inner;
  period_ = shape[static_cast<std::size_t>(s.axis)] * inner;
  start_ = s.begin * inner;
}

std::int64_t run_cursor::global() const { return at_ / run_ * period_ + start_ + at_ % run_; }

std::int64_t run_cursor::left() const { return std::min(run_ - at_ % run_, last_ - at_); }

void run_cursor::seek(std::int64_t g) {
  if (done() || g <= global())
    return;
  auto row = (g - start_) / period_; // g > global() ≥ start_
  auto within = std::min((g - start_) - row * period_, run_);
  at_ = std::max(at_, row * run_ + within);
}

void append_run(std::vector<strided_copy>& out, std::int64_t from, std::int64_t to,
                std::int64_t length) {
  if (!out.empty()) {
    auto& c = out.back();
    if (c.count == 1 && from == c.from + c.length && to == c.to + c.length) {
      c.length += length;
      return;
    }
    if (length == c.length && c.count == 1) {
      c.from_stride = from - c.from;
      c.to_stride = to - c.to;
      c.count = 2;
      return;
    }
    if (length == c.length && from == c.from + c.count * c.from_stride
        && to == c.to + c.count * c.to_stride) {
      ++c.count;
      return;
    }
  }
  out.push_back({from, to, length, 1, 0, 0});
}

std::vector<strided_copy> intersect(const tensor_shape& shape, const slice& from, const slice& to) {
  std::vector<strided_copy> result;
  run_cursor a(shape, from);
  run_cursor b(shape, to);
  while (!a.done() && !b.done()) {
    auto g = std::max(a.global(), b.global());
    a.seek(g);
    b.seek(g);
    if (a.done() || b.done() || a.global() != b.global())
      continue;
    auto length = std::min(a.left(), b.left());
    append_run(result, a.local(), b.local(), length);
    a.advance(length);
    b.advance(length);
  }
  return result;
}

} // namespace millrace::weightsync
