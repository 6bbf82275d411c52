#include "runtime/model/tensor_pool.hpp"

#include "runtime/random.hpp"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <vector>

using namespace millrace;

TEST_CASE("pooled tensors: nothing overlaps, and little more is held than was ever in use") {
  model::pool_tensor_memory();
  random_stream random{3, stream_of("tensor_pool")};
  std::vector<std::pair<at::Tensor, float>> held;
  const auto before = model::tensor_pool();
  std::int64_t bytes = 0, most = 0, largest = 0;
  for (int i = 0; i < 600; ++i) {
    if (held.size() > 8 || (!held.empty() && random.below(2) == 0)) {
      auto at = held.begin() + static_cast<std::ptrdiff_t>(random.below(held.size()));
      REQUIRE(at->first.eq(at->second).all().item<bool>());
      bytes -= static_cast<std::int64_t>(at->first.nbytes());
      held.erase(at);
      continue;
    }
    auto n = static_cast<std::int64_t>(1) << (10 + random.below(9)); // 4 KB to 2 MB
    n += static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(n)));
    held.emplace_back(at::full({n}, static_cast<float>(i), at::kFloat), static_cast<float>(i));
    REQUIRE(reinterpret_cast<std::uintptr_t>(held.back().first.data_ptr()) % 64 == 0);
    bytes += n * 4;
    largest = std::max(largest, n * 4);
    most = std::max(most, bytes);
  }
  held.clear();
  auto after = model::tensor_pool();
  REQUIRE(after.in_use == before.in_use);
  INFO("most in use " << most << ", most mapped " << after.peak);
  REQUIRE(after.peak - before.in_use <= most * 9 / 8 * 17 / 16 + largest);
  REQUIRE(at::empty({0}).numel() == 0);
}
