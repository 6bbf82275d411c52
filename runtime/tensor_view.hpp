#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

enum class dtype : std::uint8_t { f32, bf16, f16, i8, f8_e4m3, i32, i64, u8 };

/// Bytes of one element.
constexpr std::size_t size_of(dtype t) {
  switch (t) {
    case dtype::f32:
    case dtype::i32: return 4;
    case dtype::i64: return 8;
    case dtype::bf16:
    case dtype::f16: return 2;
    default: return 1;
  }
}

enum class memory_kind : std::uint8_t { host, cuda };

/// A named tensor in memory that somebody else owns: contiguous, row-major. What moves between the
/// model, the files and the wire, without any of them knowing the others' tensor type.
struct tensor_view {
  std::string name;
  dtype type = dtype::f32;
  std::vector<std::int64_t> shape;
  std::byte* data = nullptr;
  memory_kind memory = memory_kind::host;

  [[nodiscard]] std::int64_t elements() const {
    std::int64_t n = 1;
    for (auto d : shape)
      n *= d;
    return n;
  }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(elements()) * size_of(type);
  }
};

} // namespace millrace
