#pragma once

// Bytes of the replay area's files: little-endian, the same on every machine.

#include "runtime/messages.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace millrace {

static_assert(std::endian::native == std::endian::little, "swap bytes in replay/codec.hpp");

/// The bytes are not what the reader expected. Whoever knows the file turns it into a user_error.
class damaged_bytes : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

class byte_writer {
public:
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  void put(T x) {
    bytes_.append(reinterpret_cast<const char*>(&x), sizeof x);
  }
  void put(std::string_view text) {
    put(static_cast<std::uint64_t>(text.size()));
    bytes_.append(text);
  }
  template <class T>
    requires std::is_arithmetic_v<T>
  void put(const std::vector<T>& xs) {
    put(static_cast<std::uint64_t>(xs.size()));
    bytes_.append(reinterpret_cast<const char*>(xs.data()), xs.size() * sizeof(T));
  }
  void put(const scored_group& group);

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::string take() { return std::move(bytes_); }

private:
  std::string bytes_;
};

/// Reads back what byte_writer wrote. Never reads, nor allocates, beyond what is there.
/// \throws damaged_bytes
class byte_reader {
public:
  explicit byte_reader(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
    requires std::is_arithmetic_v<T>
  T get() {
    T x;
    std::memcpy(&x, take(sizeof x).data(), sizeof x);
    return x;
  }
  std::string text() { return std::string(take(count(1))); }
  template <class T>
  std::vector<T> numbers() {
    const auto n = count(sizeof(T));
    const auto from = take(n * sizeof(T));
    std::vector<T> xs(n);
    if (n > 0)
      std::memcpy(xs.data(), from.data(), from.size());
    return xs;
  }
  scored_group group();

  /// How many items of at least `size` bytes each follow. \throws when they can't be there
  std::size_t count(std::size_t size) {
    const auto n = get<std::uint64_t>();
    if (n > bytes_.size() / size)
      throw damaged_bytes("a length of " + std::to_string(n) + " where "
                          + std::to_string(bytes_.size()) + " bytes are left");
    return static_cast<std::size_t>(n);
  }
  [[nodiscard]] std::size_t left() const { return bytes_.size(); }
  /// \throws when anything is left
  void end() const {
    if (!bytes_.empty())
      throw damaged_bytes(std::to_string(bytes_.size()) + " bytes too many");
  }

private:
  std::string_view take(std::size_t n) {
    if (n > bytes_.size())
      throw damaged_bytes(std::to_string(n) + " bytes expected, " + std::to_string(bytes_.size())
                          + " are left");
    auto part = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return part;
  }

  std::string_view bytes_;
};

/// CRC-32C (Castagnoli) of the bytes, going on from `crc`.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes, std::uint32_t crc = 0);

} // namespace millrace
