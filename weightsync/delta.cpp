#include "weightsync/delta.hpp"

#include <algorithm>
#include <cstring>

namespace millrace::weightsync {

namespace {

constexpr std::size_t skip = 255;

// Elements are compared a block at a time first: most of them are equal.
constexpr std::size_t block = 64;

} // namespace

bool encode_delta(std::span<const std::byte> before, std::span<const std::byte> after,
                  std::size_t size, std::size_t limit, std::vector<std::byte>& out) {
  std::vector<std::byte> steps;
  std::vector<std::byte> values;
  std::size_t gap = 0;
  for (std::size_t at = 0; at < after.size();) {
    auto n = std::min(block, after.size() - at);
    if (std::memcmp(before.data() + at, after.data() + at, n) == 0) {
      gap += n / size;
      at += n;
      continue;
    }
    for (auto end = at + n; at < end; at += size) {
      if (std::memcmp(before.data() + at, after.data() + at, size) == 0) {
        ++gap;
        continue;
      }
      steps.insert(steps.end(), gap / skip, std::byte{skip});
      steps.push_back(static_cast<std::byte>(gap % skip));
      values.insert(values.end(), after.begin() + static_cast<std::ptrdiff_t>(at),
                    after.begin() + static_cast<std::ptrdiff_t>(at + size));
      gap = 0;
    }
    if (sizeof(std::uint32_t) + steps.size() + values.size() >= limit)
      return false;
  }
  if (sizeof(std::uint32_t) >= limit && values.empty()) // nothing has changed, and no room to say so
    return false;
  auto count = static_cast<std::uint32_t>(steps.size());
  auto start = out.size();
  out.resize(start + sizeof(count));
  std::memcpy(out.data() + start, &count, sizeof(count));
  out.insert(out.end(), steps.begin(), steps.end());
  out.insert(out.end(), values.begin(), values.end());
  return true;
}

bool apply_delta(std::span<const std::byte> delta, std::size_t size, std::span<std::byte> bytes) {
  std::uint32_t count = 0;
  if (delta.size() < sizeof(count))
    return false;
  std::memcpy(&count, delta.data(), sizeof(count));
  if (count > delta.size() - sizeof(count))
    return false;
  auto steps = delta.subspan(sizeof(count), count);
  auto values = delta.subspan(sizeof(count) + count);
  std::size_t at = 0;
  for (auto step : steps) {
    auto gap = static_cast<std::size_t>(step);
    at += gap * size;
    if (gap == skip)
      continue;
    if (at > bytes.size() || bytes.size() - at < size || values.size() < size)
      return false;
    std::memcpy(bytes.data() + at, values.data(), size);
    values = values.subspan(size);
    at += size;
  }
  return values.empty();
}

} // namespace millrace::weightsync
