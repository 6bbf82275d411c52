#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace millrace::weightsync {

/// XXH3, 64 bits, with the widest vector unit of the machine. Proves that bytes arrived as they
/// were sent; it is no defence against somebody who changes them on purpose.
std::uint64_t checksum(std::span<const std::byte> bytes);

/// Copies, and returns the checksum of what was copied: in one pass through memory, and past the
/// cache, which would have no room for as much as this is meant for.
std::uint64_t copy_with_checksum(std::span<const std::byte> from, std::byte* to);

/// The same checksum over bytes that come in several parts, in order.
class running_checksum {
public:
  running_checksum();
  ~running_checksum();
  running_checksum(const running_checksum&) = delete;
  running_checksum& operator=(const running_checksum&) = delete;

  void reset();
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t value() const;

private:
  struct state;
  std::unique_ptr<state> state_;
};

} // namespace millrace::weightsync
