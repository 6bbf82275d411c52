// What a run is predicted to need, on the host and on a device.

#include "test/trainer/probe.hpp"

#include "trainer/memory_estimate.hpp"

#include <catch2/catch.hpp>

#include <bit>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

namespace {

/// Numbers in the KV cache of `tokens`.
std::int64_t cached(const model::model_config& c, std::int64_t tokens) {
  return tokens * 2 * c.num_hidden_layers * c.key_value_size();
}

} // namespace

TEST_CASE("memory: what is on a CUDA device, and what is not") {
  auto s = tiny_settings();
  auto c = tiny_config();
  const auto n = parameters_of(c);
  REQUIRE(device_total(trainer_memory(c, s)) == 0);
  const auto on_cpu = total(trainer_memory(c, s));
  s.trainer.device = compute_device::cuda;
  const auto there = device_total(trainer_memory(c, s)), host = total(trainer_memory(c, s));
  REQUIRE(host < on_cpu);
  s.trainer.offload_optimizer = true;
  REQUIRE(device_total(trainer_memory(c, s)) == there - 8 * n);
  const auto pages = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(4 * n)));
  REQUIRE(pages > 4 * n); // or it would show nothing
  REQUIRE(total(trainer_memory(c, s)) == host + 8 * n + 2 * pages);
  s.trainer.device = compute_device::cpu;
  REQUIRE(total(trainer_memory(c, s)) == on_cpu + 8 * n);
}

TEST_CASE("memory: generators on CUDA devices, in what they compute in") {
  auto s = tiny_settings();
  auto c = tiny_config();
  const auto n = parameters_of(c);
  s.generator.count = 3;
  s.generator.kv_cache_tokens = 100;
  s.generator.max_batch = 5;
  const auto cache = cached(c, 100);
  const auto evaluation = 2 * n + cached(c, 100); // in numbers
  const auto on_host = total(run_memory(c, s)); // fp32
  REQUIRE(device_total(run_memory(c, s)) == 0);
  s.generator.device = compute_device::cuda;
  const auto there = 3 * (2 * n * 4 + cache * 4) + evaluation * 4;
  REQUIRE(device_total(run_memory(c, s)) == there);
  REQUIRE(total(run_memory(c, s)) == on_host - there);
  s.generator.dtype = weight_dtype::bf16;
  REQUIRE(device_total(run_memory(c, s)) == 3 * (2 * n * 2 + cache * 2) + evaluation * 2);
  const auto published = total(run_memory(c, s));
  s.generator.dtype = weight_dtype::fp8;
  // What evaluates is not in 8 bits.
  REQUIRE(device_total(run_memory(c, s)) == 3 * (2 * n + cache * 2) + evaluation * 2);
  REQUIRE(total(run_memory(c, s)) == published); // as bf16
}

TEST_CASE("memory: engines that evaluate, where they compute") {
  auto s = tiny_settings();
  auto c = tiny_config();
  const auto engine = 4 * (2 * parameters_of(c) + cached(c, s.generator.max_batch * 64));
  const auto once = total(run_memory(c, s));
  s.run.eval_every = 10; // while it trains, too
  REQUIRE(total(run_memory(c, s)) == once + engine);
  auto small = s; // as the generators' are
  small.generator.kv_cache_tokens = 64;
  REQUIRE(total(run_memory(c, s)) - total(run_memory(c, small))
          == (s.generator.count + 2) * 4 * cached(c, (s.generator.max_batch - 1) * 64));
  s.generator.device = compute_device::cuda;
  REQUIRE(device_total(run_memory(c, s)) == (s.generator.count + 2) * engine);
  // The evaluator on a node of its own; the generators elsewhere.
  s.generator.device = compute_device::cpu;
  s.trainer.device = compute_device::cuda;
  const auto trainer = device_total(trainer_memory(c, s));
  REQUIRE(device_total(run_memory(c, s)) == trainer);
  s.cluster.nodes.resize(2);
  s.cluster.nodes[0].actors.trainer = 1;
  REQUIRE(device_total(run_memory(c, s)) == trainer + 2 * engine);
  s.cluster.nodes[1].actors.evaluator = 1;
  REQUIRE(device_total(run_memory(c, s)) == trainer + engine);
}
