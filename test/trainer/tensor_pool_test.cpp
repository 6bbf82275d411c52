#include "runtime/model/tensor_pool.hpp"

#include "runtime/random.hpp"
#include "test/trainer/toy.hpp"
#include "trainer/memory_estimate.hpp"
#include "trainer/policy.hpp"

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

TEST_CASE("the tensors of a full micro-batch take what is predicted, to a quarter") {
  model::pool_tensor_memory();
  std::vector<scored_group> groups(2);
  for (int g = 0; g < 2; ++g) {
    groups[static_cast<std::size_t>(g)].group = g;
    for (int i = 0; i < 8; ++i) {
      rollout r{.id = {g, i}, .prompt_length = 8, .tokens = std::vector<std::int32_t>(128, 3)};
      r.versions.assign(128, 0);
      std::fill_n(r.versions.begin(), 8, -1);
      r.behaviour_logp.assign(128, -2);
      r.reward = static_cast<float>(i % 2);
      groups[static_cast<std::size_t>(g)].rollouts.push_back(r);
    }
  }
  struct way {
    bool again;
    compute_dtype compute;
  };
  for (auto w : {way{false, compute_dtype::fp32}, way{true, compute_dtype::fp32},
                 way{false, compute_dtype::bf16}}) {
    auto s = toy::tiny_settings();
    s.model.architecture = {.layers = 4, .hidden = 128, .heads = 4, .kv_heads = 2,
                            .intermediate = 352, .max_positions = 128};
    s.rollout.batch_size = 16;
    s.rollout.group_size = 8;
    s.sampling.max_tokens = 120;
    s.trainer.share_prompts = false;
    s.trainer.micro_batch_tokens = 2048;
    s.trainer.activation_checkpointing = w.again;
    s.trainer.compute = w.compute;
    model::trim_tensor_pool();
    const auto before = model::tensor_pool().in_use;
    auto p = trainer::policy::create(s);
    p.step({0}, groups);
    double predicted = 0;
    for (const auto& i : trainer::trainer_memory(p.config(), s))
      predicted += i.what == "trainer: checkpoint" ? 0 : static_cast<double>(i.bytes);
    const auto ratio = static_cast<double>(model::tensor_pool().peak - before) / predicted;
    INFO((w.again ? "computed again" : "kept") << (w.compute == compute_dtype::bf16 ? ", bf16" : "")
         << ": " << ratio << " of " << predicted / 1e6 << " MB predicted");
    REQUIRE(ratio > 0.75);
    REQUIRE(ratio < 1.25);
  }
}
