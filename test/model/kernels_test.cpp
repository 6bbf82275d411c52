#include "model_fixture.hpp"

#include "runtime/model/attention.hpp"
#include "runtime/model/kernels.hpp"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <limits>

using namespace millrace;
using namespace millrace::model;
using test::kernel_tables;
using test::normal_numbers;

TEST_CASE("products equal the definition, at every edge size") {
  random_stream draws(1);
  for (const auto* t : kernel_tables())
    for (const std::int64_t rows : {1, 3, 4, 7, 12, 13, 25})
      for (const std::int64_t n : {1, 15, 16, 17, 48, 64, 70, 113})
        for (const std::int64_t k : {1, 5, 32}) {
          const auto a = normal_numbers(draws, rows * k), w = normal_numbers(draws, n * k);
          const auto bias = normal_numbers(draws, n);
          std::vector<float> packed(static_cast<std::size_t>(strips_for(n) * 16 * k));
          std::vector<float> c(static_cast<std::size_t>(rows * n), 1.0F);
          t->pack(w.data(), k, packed.data(), n, k, 0, strips_for(n));
          t->gemm({a.data(), k, packed.data(), bias.data(), c.data(), n, rows, k, n, true}, 0,
                  strips_for(n));
          double worst = 0;
          for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < n; ++j) {
              double sum = 1 + bias[static_cast<std::size_t>(j)];
              for (std::int64_t x = 0; x < k; ++x)
                sum += static_cast<double>(a[static_cast<std::size_t>(i * k + x)])
                       * w[static_cast<std::size_t>(j * k + x)];
              worst = std::max(worst, std::abs(sum - c[static_cast<std::size_t>(i * n + j)]));
            }
          INFO(t->name << " " << rows << "x" << n << "x" << k);
          REQUIRE(worst < 2e-5);
        }
}

TEST_CASE("a row's product is bitwise the same beside any other rows") {
  random_stream draws(2);
  const std::int64_t n = 100, k = 37;
  const auto w = normal_numbers(draws, n * k), a = normal_numbers(draws, 40 * k);
  for (const auto* t : kernel_tables()) {
    std::vector<float> packed(static_cast<std::size_t>(strips_for(n) * 16 * k));
    t->pack(w.data(), k, packed.data(), n, k, 0, strips_for(n));
    std::vector<float> alone(40 * n), together(40 * n);
    for (std::int64_t i = 0; i < 40; ++i)
      t->gemm({a.data() + i * k, k, packed.data(), nullptr, alone.data() + i * n, n, 1, k, n}, 0,
              strips_for(n));
    for (const std::int64_t rows : {2, 5, 12, 31, 40}) {
      // In two halves of columns, as two threads would.
      t->gemm({a.data(), k, packed.data(), nullptr, together.data(), n, rows, k, n}, 0, 2);
      t->gemm({a.data(), k, packed.data(), nullptr, together.data(), n, rows, k, n}, 2,
              strips_for(n));
      REQUIRE(std::memcmp(alone.data(), together.data(),
                          static_cast<std::size_t>(rows * n) * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("exponentials are right over their whole range") {
  for (const auto* t : kernel_tables()) {
    std::vector<float> x, w;
    for (float v = -87; v <= 0; v += 0.0371F)
      x.push_back(v);
    x.push_back(-std::numeric_limits<float>::infinity());
    x.push_back(-1000);
    w.resize(x.size());
    std::vector<double> sums(x.size() / sum_width + 1);
    t->exponentials(x.data(), w.data(), sums.data(), static_cast<std::int64_t>(x.size()), 0, 1);
    double sum = 0, expected = 0;
    for (const auto s : sums)
      sum += s;
    for (std::size_t i = 0; i < x.size(); ++i) {
      expected += std::exp(static_cast<double>(x[i]));
      REQUIRE(w[i] == Approx(std::exp(static_cast<double>(x[i]))).epsilon(3e-7).margin(1e-37));
    }
    REQUIRE(sum == Approx(expected).epsilon(1e-6));
    REQUIRE(w.back() == 0);
  }
}

TEST_CASE("the largest number is found, and what is not finite is told") {
  for (const auto* t : kernel_tables()) {
    std::vector<float> x(37, -3.0F);
    x[20] = -1;
    REQUIRE(t->maximum(x.data(), 37) == -1);
    REQUIRE(t->maximum(x.data(), 1) == -3);
    for (const float bad : {NAN, INFINITY, -INFINITY})
      for (const std::size_t at : {0, 17, 36}) {
        auto y = x;
        y[at] = bad;
        REQUIRE_FALSE(std::isfinite(t->maximum(y.data(), 37)));
      }
  }
}

TEST_CASE("all instruction sets agree") {
  random_stream draws(4);
  const auto all = kernel_tables();
  const std::int64_t d = 54, rows = 3;
  const auto x = normal_numbers(draws, rows * 2 * d), w = normal_numbers(draws, d);
  std::vector<std::vector<float>> norm, gated;
  for (const auto* t : all) {
    norm.emplace_back(static_cast<std::size_t>(rows * d));
    t->rms_norm(x.data(), d, w.data(), norm.back().data(), d, rows, d, 1e-6F);
    gated.emplace_back(static_cast<std::size_t>(rows * d));
    t->swiglu(x.data(), 2 * d, gated.back().data(), d, rows, d);
  }
  for (std::size_t i = 0; i < norm[0].size(); ++i) {
    const auto at = (i / d) * 2 * d + i % d;
    const double g = x[at], u = x[at + d];
    REQUIRE(gated[0][i] == Approx(g / (1 + std::exp(-g)) * u).epsilon(1e-5).margin(1e-6));
    for (std::size_t t = 1; t < all.size(); ++t) {
      REQUIRE(norm[t][i] == Approx(norm[0][i]).epsilon(1e-5));
      REQUIRE(gated[t][i] == Approx(gated[0][i]).epsilon(1e-5).margin(1e-6));
    }
  }
}
