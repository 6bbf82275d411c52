#include "weightsync/convert.hpp"

#include "runtime/error.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

// The loops are compiled for several processors, and the machine's best is chosen at load.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__)
#define MILLRACE_VECTORISED __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define MILLRACE_VECTORISED
#endif

namespace millrace::weightsync {

MILLRACE_VECTORISED
void f32_to_bf16(const float* from, std::uint16_t* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    auto bits = std::bit_cast<std::uint32_t>(from[i]);
    auto rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
    auto quiet_nan = (bits >> 16U) | 0x40U;
    to[i] = static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet_nan : rounded);
  }
}

MILLRACE_VECTORISED
void bf16_to_f32(const std::uint16_t* from, float* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16U);
}

MILLRACE_VECTORISED
float largest_magnitude(const float* from, std::size_t n) {
  // Non-negative floats are ordered like their bits, and NaNs come after infinity.
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    auto bits = std::bit_cast<std::uint32_t>(from[i]) & 0x7FFFFFFFU;
    largest = bits > largest ? bits : largest;
  }
  return largest > 0x7F800000U ? std::numeric_limits<float>::infinity()
                               : std::bit_cast<float>(largest);
}

float f8_scale(float largest) { return largest > smallest_scaled ? largest / 448.0F : 1.0F; }

// Where a GPU's tensors are tested without one: no loop for vector units.
void f32_to_f8(const float* from, std::uint8_t* to, std::size_t n, float scale) {
  const auto inverse = 1.0F / scale;
  for (std::size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i] * inverse);
    auto magnitude = bits & 0x7FFFFFFFU;
    std::uint32_t code = 0x7F; // not a number
    if (magnitude <= 0x7F800000U) {
      const auto x = std::min(std::bit_cast<float>(magnitude), 448.0F);
      if (x < 0x1p-6F) // below the smallest that has an exponent: steps of 2⁻⁹
        code = static_cast<std::uint32_t>(std::nearbyint(x * 512.0F));
      else {
        magnitude = std::bit_cast<std::uint32_t>(x);
        magnitude += 0x7FFFFU + ((magnitude >> 20U) & 1U); // to three bits of mantissa
        code = (magnitude >> 20U) - (120U << 3U);
      }
    }
    to[i] = static_cast<std::uint8_t>(((bits >> 24U) & 0x80U) | code);
  }
}

float i8_scale(float largest) { return largest > smallest_scaled ? largest / 127.0F : 1.0F; }

MILLRACE_VECTORISED
void f32_to_i8(const float* from, std::int8_t* to, std::size_t n, float scale) {
  // Adding 1.5 · 2^23 leaves the integer nearest (ties to even) in the low bits of the mantissa.
  constexpr float magic = 12582912.0F;
  auto inverse = 1.0F / scale;
  for (std::size_t i = 0; i < n; ++i) {
    auto x = from[i] * inverse;
    x = x > 127.0F ? 127.0F : x;
    x = x > -127.0F ? x : -127.0F;
    to[i] = static_cast<std::int8_t>(std::bit_cast<std::int32_t>(x + magic) - 0x4B400000);
  }
}

MILLRACE_VECTORISED
void i8_to_f32(const std::int8_t* from, float* to, std::size_t n, float scale) {
  for (std::size_t i = 0; i < n; ++i)
    to[i] = static_cast<float>(from[i]) * scale;
}

namespace {

void i8_to_bf16(const std::int8_t* from, std::uint16_t* to, std::size_t n, float scale) {
  std::array<float, 1024> some;
  for (std::size_t i = 0; i < n; i += some.size()) {
    auto k = std::min(some.size(), n - i);
    i8_to_f32(from + i, some.data(), k, scale);
    f32_to_bf16(some.data(), to + i, k);
  }
}

} // namespace

void convert(dtype from_type, const std::byte* from, dtype to_type, std::byte* to, std::size_t n,
             float scale) {
  const auto* f32 = reinterpret_cast<const float*>(from);
  const auto* i8 = reinterpret_cast<const std::int8_t*>(from);
  if (from_type == to_type)
    std::memcpy(to, from, n * size_of(from_type));
  else if (from_type == dtype::f32 && to_type == dtype::bf16)
    f32_to_bf16(f32, reinterpret_cast<std::uint16_t*>(to), n);
  else if (from_type == dtype::bf16 && to_type == dtype::f32)
    bf16_to_f32(reinterpret_cast<const std::uint16_t*>(from), reinterpret_cast<float*>(to), n);
  else if (from_type == dtype::i8 && to_type == dtype::f32)
    i8_to_f32(i8, reinterpret_cast<float*>(to), n, scale);
  else if (from_type == dtype::i8 && to_type == dtype::bf16)
    i8_to_bf16(i8, reinterpret_cast<std::uint16_t*>(to), n, scale);
  else if (from_type == dtype::f32 && to_type == dtype::i8)
    f32_to_i8(f32, reinterpret_cast<std::int8_t*>(to), n, scale);
  else
    ensure(false, "no conversion between tensor types " + std::to_string(int(from_type)) + " and "
                    + std::to_string(int(to_type)));
}

} // namespace millrace::weightsync
