#pragma once

#include "runtime/error.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
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

/// Copies host tensors by name; both sides must hold the same names, types and shapes.
/// \throws invariant_error otherwise
inline void copy_weights(std::span<const tensor_view> from, std::span<const tensor_view> to) {
  std::map<std::string_view, const tensor_view*> by_name;
  for (const auto& t : from)
    by_name[t.name] = &t;
  for (const auto& t : to) {
    auto it = by_name.find(t.name);
    ensure(it != by_name.end() && it->second->shape == t.shape && it->second->type == t.type,
           [&] { return "no tensor to copy " + t.name + " from"; });
    std::memcpy(t.data, it->second->data, t.bytes());
  }
}

} // namespace millrace
