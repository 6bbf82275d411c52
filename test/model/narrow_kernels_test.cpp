#include "model_fixture.hpp"

#include "runtime/model/kernels.hpp"
#include "runtime/model/packed_weights.hpp"
#include "runtime/model/safetensors.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

using namespace millrace;
using namespace millrace::model;
using test::kernel_tables;
using test::normal_numbers;

namespace {

float to_bf16(float x) {
  std::uint16_t half = 0;
  convert_elements(reinterpret_cast<const std::byte*>(&x), dtype::f32,
                   reinterpret_cast<std::byte*>(&half), dtype::bf16, 1);
  return std::bit_cast<float>(std::uint32_t{half} << 16);
}

/// A matrix of either narrow type, packed by one table, with what its numbers stand for.
struct narrow_matrix {
  std::vector<std::byte> packed;
  std::vector<float> scales, values;
  dtype type;
  std::int64_t n, k;

  narrow_matrix(const kernel_table& t, dtype type_, std::int64_t n_, std::int64_t k_,
                random_stream& draws)
      : packed(packed_matrix::bytes(type_, n_, k_)),
        scales(static_cast<std::size_t>(strips_for(n_) * strip_width)), type(type_), n(n_), k(k_) {
    const auto width = static_cast<std::int64_t>(size_of(type));
    std::vector<std::byte> raw(static_cast<std::size_t>(n * k * width));
    for (std::int64_t i = 0; i < n; ++i) {
      scales[static_cast<std::size_t>(i)] = 0.01F + 0.02F * static_cast<float>(draws.uniform());
      for (std::int64_t j = 0; j < k; ++j) {
        auto* at = raw.data() + (i * k + j) * width;
        if (type == dtype::i8) {
          const auto q = static_cast<std::int8_t>(static_cast<int>(draws.below(255)) - 127);
          *at = static_cast<std::byte>(q);
          values.push_back(static_cast<float>(q) * scales[static_cast<std::size_t>(i)]);
        } else {
          values.push_back(to_bf16(draws.normal()));
          const auto half = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values.back()) >> 16);
          std::memcpy(at, &half, 2);
        }
      }
    }
    const auto lanes = static_cast<std::int64_t>(packed.size()) / (strips_for(n) * strip_width * 4);
    t.pack_lanes(raw.data(), k * width, packed.data(), n, lanes,
                 type == dtype::i8 ? 0x80808080U : 0U, 0, strips_for(n));
  }

  /// c[rows, n], from rows of fp32 activations that are rounded first.
  std::vector<float> product(const kernel_table& t, const float* a, std::int64_t rows,
                             const float* bias = nullptr, std::int64_t cut = 0) const {
    const auto stride = narrow_row_bytes(k);
    std::vector<std::byte> rounded(static_cast<std::size_t>(rows * stride));
    (type == dtype::i8 ? t.quantise_rows : t.round_rows)(a, k, rounded.data(), stride, rows, k);
    std::vector<float> c(static_cast<std::size_t>(rows * n), 1.0F);
    const narrow_gemm_task task{rounded.data(), stride, packed.data(), scales.data(), bias,
                                c.data(), n, rows, k, n, bias != nullptr};
    const auto gemm = type == dtype::i8 ? t.gemm_i8 : t.gemm_bf16;
    gemm(task, 0, cut);
    gemm(task, cut, strips_for(n));
    return c;
  }
};

} // namespace

TEST_CASE("narrow products equal the definition, at every edge size") {
  random_stream draws(21);
  for (const auto type : {dtype::bf16, dtype::i8})
    for (const auto* t : kernel_tables())
      for (const std::int64_t rows : {1, 2, 5, 7, 13, 26})
        for (const std::int64_t n : {1, 16, 31, 48})
          for (const std::int64_t k : {1, 7, 64, 130}) {
            const narrow_matrix w(*t, type, n, k, draws);
            const auto a = normal_numbers(draws, rows * k), bias = normal_numbers(draws, n);
            const auto c = w.product(*t, a.data(), rows, bias.data());
            double worst = 0;
            for (std::int64_t i = 0; i < rows; ++i)
              for (std::int64_t j = 0; j < n; ++j) {
                double sum = 1 + bias[static_cast<std::size_t>(j)], allowed = 1e-5;
                for (std::int64_t first = 0; first < k; first += i8_group) {
                  const auto end = std::min(k, first + i8_group);
                  float largest = 0;
                  for (auto x = first; x < end; ++x)
                    largest = std::max(largest, std::abs(a[static_cast<std::size_t>(i * k + x)]));
                  for (auto x = first; x < end; ++x) {
                    const auto v = a[static_cast<std::size_t>(i * k + x)];
                    const double weight = w.values[static_cast<std::size_t>(j * k + x)];
                    sum += weight * (type == dtype::bf16 ? to_bf16(v) : v);
                    // An activation is off by half of its group's step at most.
                    if (type == dtype::i8)
                      allowed += std::abs(weight) * largest / 127 * 0.501;
                    allowed += std::abs(weight) * 1e-6;
                  }
                }
                worst = std::max(worst, std::abs(sum - c[static_cast<std::size_t>(i * n + j)])
                                          / allowed);
              }
            INFO(t->name << " " << rows << "x" << n << "x" << k << (type == dtype::i8 ? " i8" : " bf16"));
            REQUIRE(worst <= 1);
          }
}

TEST_CASE("a row's narrow product is bitwise the same beside any other rows") {
  random_stream draws(22);
  const std::int64_t n = 100, k = 200;
  const auto a = normal_numbers(draws, 40 * k);
  for (const auto type : {dtype::bf16, dtype::i8})
    for (const auto* t : kernel_tables()) {
      const narrow_matrix w(*t, type, n, k, draws);
      std::vector<float> alone;
      for (std::int64_t i = 0; i < 40; ++i)
        for (const auto x : w.product(*t, a.data() + i * k, 1))
          alone.push_back(x);
      for (const std::int64_t rows : {2, 5, 12, 31, 40})
        for (const std::int64_t cut : {0, 1, 3, 7}) { // as two threads would
          const auto together = w.product(*t, a.data(), rows, nullptr, cut);
          REQUIRE(std::memcmp(alone.data(), together.data(), together.size() * sizeof(float)) == 0);
        }
    }
}

TEST_CASE("all instruction sets agree on 8-bit products") {
  for (const auto* t : kernel_tables()) {
    random_stream draws(23);
    const narrow_matrix w(*t, dtype::i8, 33, 150, draws);
    const auto a = normal_numbers(draws, 5 * 150);
    const auto c = w.product(*t, a.data(), 5);
    random_stream again(23);
    const narrow_matrix first(*kernel_tables()[0], dtype::i8, 33, 150, again);
    const auto expected = first.product(*kernel_tables()[0], a.data(), 5);
    for (std::size_t i = 0; i < c.size(); ++i)
      REQUIRE(c[i] == Approx(expected[i]).epsilon(1e-5).margin(1e-5));
  }
}

TEST_CASE("activations that are not finite are not hidden by quantising") {
  random_stream draws(24);
  for (const auto type : {dtype::bf16, dtype::i8})
    for (const auto* t : kernel_tables())
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        const narrow_matrix w(*t, type, 16, 70, draws);
        auto a = normal_numbers(draws, 70);
        a[66] = bad;
        const auto c = w.product(*t, a.data(), 1);
        REQUIRE(std::none_of(c.begin(), c.end(), [](float x) { return std::isfinite(x); }));
      }
}

TEST_CASE("a packed matrix gives its rows back") {
  random_stream draws(25);
  for (const auto type : {dtype::f32, dtype::bf16, dtype::i8})
    for (const std::int64_t k : {1, 6, 65}) {
      const std::int64_t n = 37;
      std::vector<float> values, scales(48);
      std::vector<std::byte> packed(packed_matrix::bytes(type, n, k));
      if (type == dtype::f32) {
        values = normal_numbers(draws, n * k);
        kernels().pack_lanes(reinterpret_cast<const std::byte*>(values.data()), k * 4,
                             packed.data(), n, k, 0, 0, strips_for(n));
      } else {
        const narrow_matrix w(kernels(), type, n, k, draws);
        values = w.values;
        packed = w.packed;
        scales = w.scales;
      }
      const packed_matrix m{packed.data(), scales.data(), nullptr, n, k, type};
      std::vector<float> row(static_cast<std::size_t>(k));
      for (std::int64_t i = 0; i < n; ++i) {
        m.unpack(i, row.data());
        for (std::int64_t j = 0; j < k; ++j)
          REQUIRE(row[static_cast<std::size_t>(j)] == values[static_cast<std::size_t>(i * k + j)]);
      }
    }
}
