#pragma once

#include "runtime/tensor_view.hpp"

#include <cstddef>
#include <cstdint>

namespace millrace::weightsync {

/// f32 → bf16, to the nearest, ties to even; NaN stays NaN.
void f32_to_bf16(const float* from, std::uint16_t* to, std::size_t n);
/// Exact.
void bf16_to_f32(const std::uint16_t* from, float* to, std::size_t n);

/// Largest magnitude; 0 for n = 0. NaN counts as infinity, so that it can't hide.
float largest_magnitude(const float* from, std::size_t n);
/// Below this a row counts as zero, with the scale 1: the reciprocal of its own scale could be
/// infinite, which makes NaN of zeros. Every place that quantises has the same bound.
constexpr float smallest_scaled = 1e-30F;
/// Of symmetric 8-bit quantisation: largest magnitude ↔ 127.
float i8_scale(float largest);
/// round(x · (1 / scale)), ties to even, within ±127.
void f32_to_i8(const float* from, std::int8_t* to, std::size_t n, float scale);
/// The scale with which `largest` becomes E4M3's largest number, 448.
float f8_scale(float largest);
/// x · (1 / scale) in E4M3: the nearest number, ties to even, within ±448; what is no number stays none.
void f32_to_f8(const float* from, std::uint8_t* to, std::size_t n, float scale);
void i8_to_f32(const std::int8_t* from, float* to, std::size_t n, float scale);

/// Copies n elements; the types are equal, f32 and bf16 in either order, i8 to f32 or bf16 (times
/// `scale`), or f32 to i8 (divided by it).
void convert(dtype from_type, const std::byte* from, dtype to_type, std::byte* to, std::size_t n,
             float scale = 1);

} // namespace millrace::weightsync
