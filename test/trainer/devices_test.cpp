// What a CUDA device will compute, proven without one: operations composed of ATen's, on the CPU and on
// a device that only says it is elsewhere (fake_device.hpp), where mixing devices throws.

#include "test/model/model_families.hpp"
#include "test/trainer/fake_device.hpp"
#include "test/trainer/probe.hpp"
#include "test/trainer/scratch_folder.hpp"

#include "runtime/error.hpp"
#include "runtime/model/torch_device.hpp"
#include "runtime/model/transformer_ops.hpp"
#include "runtime/model/weight_transfer.hpp"
#include "trainer/c10d_backends.hpp"
#include "trainer/full_device.hpp"
#include "trainer/memory_estimate.hpp"
#include "trainer/old_logit_worker.hpp"
#include "trainer/policy.hpp"
#include "trainer/scoring.hpp"
#include "trainer/supervised.hpp"
#include "trainer/tensor_memory.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <catch2/catch.hpp>

#include <bit>
#include <chrono>
#include <numeric>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

namespace {

/// What other devices' tests compute comes before what asks for CUDA.
const bool opened_first = (model::prepare_for_cuda(), true);

/// A step with everything on: prompts shared, several micro-batches, a KL reference, two epochs.
settings whole_step(compute_dtype compute, bool again) {
  auto s = tiny_settings();
  s.trainer.micro_batch_tokens = 60;
  s.trainer.minibatches = 2;
  s.trainer.epochs = 2;
  s.trainer.eps = 1e-4; // small differences of small gradients stay small
  s.trainer.compute = compute;
  s.trainer.activation_checkpointing = again;
  s.algorithm.kl = {0.05, kl_estimator::k3, kl_place::loss, kl_reference::initial};
  return s;
}

std::vector<float> trained(const settings& s, const std::vector<scored_group>& groups,
                           step_statistics* stats = nullptr) {
  auto network = tiny_network();
  network.recompute_activations(s.trainer.activation_checkpointing);
  network.compute_in(s.trainer.compute == compute_dtype::bf16 ? at::kBFloat16 : at::kFloat);
  reinforcement trainer(network, s);
  auto result = trainer.step({2}, groups);
  if (stats)
    *stats = result;
  return parameters(network.views());
}

packed_sequences some_packed(const std::vector<scored_group>& groups) {
  auto sequences = training_sequences(groups);
  std::vector<std::size_t> all(sequences.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return pack(sequences, all, true);
}

} // namespace

TEST_CASE("devices: a training step of composed operations equals one of fused kernels") {
  auto groups = sibling_groups(3, 8, 6, {2}, 2);
  for (auto compute : {compute_dtype::fp32, compute_dtype::bf16})
    for (bool again : {false, true}) {
      auto s = whole_step(compute, again);
      step_statistics fused, composed;
      auto a = trained(s, groups, &fused);
      model::composed_operations everywhere;
      auto b = trained(s, groups, &composed);
      auto narrow = compute == compute_dtype::bf16;
      INFO((narrow ? "bf16" : "fp32") << (again ? ", computed again" : ""));
      REQUIRE(largest_difference(a, b) > 0); // it was another computation
      REQUIRE(largest_difference(a, b) < (narrow ? 2e-2 : 2e-4));
      REQUIRE(composed.loss == Approx(fused.loss).margin(narrow ? 1e-2 : 1e-5));
      REQUIRE(composed.grad_norm == Approx(fused.grad_norm).epsilon(narrow ? 0.05 : 1e-3));
      REQUIRE(composed.entropy == Approx(fused.entropy).epsilon(narrow ? 1e-2 : 1e-4));
    }
}

TEST_CASE("devices: forward and backward are those of composed operations on the CPU") {
  auto packed = some_packed(sibling_groups(3, 8, 6, {2}, 2));
  for (const char* type : {"llama", "qwen2", "qwen3"})
    for (auto compute : {at::kFloat, at::kBFloat16})
      for (bool again : {false, true}) {
        INFO(type);
        auto c = test::of_family(tiny_config(), type);
        c.output_bias = c.mlp_bias = c.qkv_bias;
        model::transformer here(c), there(c, fake_device());
        here.initialise(2);
        there.copy_from(here);
        REQUIRE(there.device() == fake_device());
        at::Tensor gradient[2], logp[2];
        for (auto* network : {&here, &there}) {
          model::composed_operations everywhere;
          network->compute_in(compute);
          network->recompute_activations(again);
          auto g = network->flat_gradient();
          auto scored = score_tokens(*network, packed, 0.7);
          REQUIRE(scored.logp.device() == network->device());
          (scored.logp.sum() + scored.entropy.sum()).backward();
          gradient[network == &there] = g.cpu();
          logp[network == &there] = scored.logp.detach().cpu();
        }
        // A CPU multiplies rounded numbers in fp32 where a device does it in bf16.
        const auto bar = compute == at::kFloat ? 1e-5 : 3e-2;
        REQUIRE((logp[0] - logp[1]).abs().max().item<double>() < bar);
        REQUIRE(((gradient[0] - gradient[1]).norm() / gradient[0].norm()).item<double>() < bar);
        REQUIRE(at::equal(there.frozen_copy(c10::kCPU).flat(), here.flat()));
      }
}

namespace {

/// Warm-up and two steps on a device; the parameters.
std::vector<float> course_on(c10::Device device, const settings& s, step_statistics& last) {
  model::composed_operations everywhere;
  auto start = tiny_network();
  model::transformer network(start.config(), device);
  network.copy_from(start);
  network.compute_in(s.trainer.compute == compute_dtype::bf16 ? at::kBFloat16 : at::kFloat);
  {
    supervised warm_up(network, {.optimizer = optimizer_options(s.trainer)});
    warm_up.step(std::vector<demonstration>{{{1, 3, 5, 2, 4}, 2}, {{2, 3, 1}, 1}});
  }
  reinforcement trainer(network, s);
  auto helper = trainer.old_logit_helper({0});
  for (int v = 0; v < 3; ++v) {
    auto groups = sibling_groups(static_cast<std::uint64_t>(v), 6, 4, {v}, 2);
    old_logit_supply supply;
    supply.oldest_sampling = {std::max(0, v - 1)};
    for (const auto& g : groups)
      supply.in_flight.push_back(g.rollouts.front());
    last = trainer.step({v}, groups, supply);
  }
  return parameters(network.frozen_copy(c10::kCPU).views());
}

} // namespace

TEST_CASE("devices: whole training steps, of every kind, are those of the CPU") {
  auto base = whole_step(compute_dtype::fp32, false);
  std::vector<std::pair<std::string, settings>> all;
  for (auto source : {old_logits_source::recompute, old_logits_source::snapshot,
                      old_logits_source::dedicated, old_logits_source::interrupt,
                      old_logits_source::ewma, old_logits_source::loglinear,
                      old_logits_source::arithmetic, old_logits_source::behaviour}) {
    auto s = base;
    s.algorithm.old_logits = source;
    s.algorithm.snapshot.device_bytes = 30'000; // one version or two: the others go to the host
    s.algorithm.interrupt.slots = 2;
    all.push_back({std::string(names(source)[static_cast<std::size_t>(source)]), s});
  }
  for (auto kind : {critic_kind::head, critic_kind::model}) {
    auto s = base;
    s.algorithm.critic.kind = kind;
    s.algorithm.advantage = {"gae"};
    all.push_back({"critic " + std::to_string(static_cast<int>(kind)), s});
  }
  for (const char* loss : {"aipo", "gspo", "cispo", "m2po", "mis_decoupled", "vespo", "topr"}) {
    auto s = base;
    s.algorithm.loss = {loss};
    all.push_back({loss, s});
  }
  auto s = base;
  s.trainer.offload_optimizer = true;
  all.push_back({"offloaded", s});
  s = base;
  s.algorithm.kl.place = kl_place::reward;
  s.algorithm.kl.reference = kl_reference::moving;
  s.algorithm.advantage = {"reinforce_plus_plus"};
  all.push_back({"KL in the reward, moving reference", s});
  for (const auto& [name, options] : all) {
    INFO(name);
    step_statistics a, b;
    auto there = course_on(fake_device(), options, a);
    auto here = course_on(c10::kCPU, options, b);
    REQUIRE(largest_difference(there, here) < 1e-4);
    REQUIRE(a.updates > 0);
    REQUIRE(a.loss == Approx(b.loss).margin(1e-6));
    REQUIRE(a.grad_norm == Approx(b.grad_norm).epsilon(1e-4));
    REQUIRE(a.ess == Approx(b.ess).epsilon(1e-4));
    REQUIRE(a.kl_reference == Approx(b.kl_reference).margin(1e-6));
    REQUIRE(a.old_logits_served == b.old_logits_served);
  }
}

TEST_CASE("devices: the fake one refuses a mix, so that the tests above mean something") {
  auto there = at::ones({3}, at::TensorOptions(at::kFloat).device(fake_device()));
  REQUIRE(there.sum().item<float>() == 3);
  REQUIRE_THROWS(there + at::ones({3}));
  REQUIRE_THROWS(there.index_select(0, at::zeros({1}, at::kLong)));
}

TEST_CASE("devices: a tensor's view tells its memory, and is copied from and to the host") {
  auto t = at::arange(6, at::kFloat).view({2, 3});
  auto v = view_of("t", t);
  REQUIRE(v.memory == memory_kind::host);
  REQUIRE(model::tensor_of(v).data_ptr() == t.data_ptr());
  std::vector<float> out(6), in{6, 5, 4, 3, 2, 1};
  copy_out(v, reinterpret_cast<std::byte*>(out.data()));
  REQUIRE(out == std::vector<float>{0, 1, 2, 3, 4, 5});
  copy_in(v, reinterpret_cast<const std::byte*>(in.data()));
  REQUIRE(t[0][0].item<float>() == 6);
  host_tensors there;
  there.take({v});
  REQUIRE(there.views()[0].data == v.data); // nothing to be copied
}

TEST_CASE("an offloaded optimiser's updates are those of one that isn't, bit for bit") {
  random_stream random{4, stream_of("offload")};
  auto plain = tiny_network(), twin = tiny_network();
  adamw_options o{.weight_decay = 0.1, .grad_clip = 1};
  adamw here(plain, o);
  o.offload = true;
  adamw offloaded(twin, o);
  REQUIRE(here.offloaded_bytes() == 0);
  REQUIRE(offloaded.offloaded_bytes() == 16 * plain.flat().numel());
  for (int i = 0; i < 6; ++i) {
    std::vector<float> g(static_cast<std::size_t>(plain.flat().numel()));
    for (auto& x : g)
      x = (i % 2 == 0 ? 1.0F : 1e-3F) * random.normal(); // clipped, and not
    for (auto* n : {&plain, &twin})
      n->flat_gradient().copy_(at::tensor(g));
    if (i == 3)
      twin.flat_gradient()[5] = plain.flat_gradient()[5] = std::nanf("");
    auto a = here.step(1e-2), b = offloaded.step(1e-2);
    REQUIRE(a.applied == (i != 3));
    REQUIRE(b.applied == a.applied);
    REQUIRE((!a.applied || a.grad_norm == b.grad_norm));
    REQUIRE(a.clipped == b.clipped);
    REQUIRE(same_bits(parameters(plain.views()), parameters(twin.views())));
    REQUIRE(same_bits(parameters(here.state()), parameters(offloaded.state())));
    REQUIRE(twin.flat_gradient().abs().max().item<float>() == 0);
  }
}

TEST_CASE("training with an offloaded optimiser: the same bits, over a checkpoint, too") {
  scratch_folder folder;
  std::vector<float> courses[2];
  for (bool offload : {false, true}) {
    auto s = whole_step(compute_dtype::fp32, false);
    s.trainer.offload_optimizer = offload;
    s.algorithm.critic.kind = critic_kind::model;
    s.algorithm.advantage = {"gae"};
    auto p = policy::create(s);
    p.warm_up(std::vector<demonstration>{{{1, 3, 5, 2, 4}, 2}});
    p.step({0}, sibling_groups(1, 6, 4, {0}, 0));
    auto at = folder.path / (offload ? "offloaded" : "plain");
    std::filesystem::create_directories(at);
    p.save(at);
    auto resumed = policy::load(s, at);
    for (auto* q : {&p, &resumed})
      q->step({1}, sibling_groups(2, 6, 4, {1}, 1));
    REQUIRE(same_bits(parameters(p.views()), parameters(resumed.views())));
    courses[offload ? 1 : 0] = parameters(p.host_views());
  }
  REQUIRE(same_bits(courses[0], courses[1]));
}

namespace {

/// CUDA devices here; `why` there are none, where the driver or libtorch's CUDA half is missing.
int devices_here(std::string& why) {
  try {
    return model::cuda_devices("trainer.device");
  } catch (const user_error& e) {
    why = e.what();
    return 0;
  }
}

} // namespace

TEST_CASE("a device whose memory is full is told of in one line, with what helps") {
  auto known = with_probe([](const policy_loss::inputs&, policy_loss::outputs&) {
    C10_THROW_ERROR(OutOfMemoryError, "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has");
  });
  auto p = policy::create(probing(), &known);
  try {
    p.step({0}, random_groups(1, 3, 4, {0}, 0));
    FAIL("it was not told");
  } catch (const user_error& e) {
    const std::string text = e.what();
    INFO(text);
    REQUIRE_THAT(text, Catch::StartsWith("trainer.device: ") && Catch::Contains("2.00 GiB")
                         && Catch::Contains("trainer.micro_batch_tokens"));
    REQUIRE_THAT(text, Catch::Contains("trainer.offload_optimizer")
                         && Catch::Contains("trainer.activation_checkpointing"));
    REQUIRE(text.find('\n') == std::string::npos);
  }
  auto s = tiny_settings(); // nothing is advised that is so already
  s.trainer.compute = compute_dtype::bf16;
  s.trainer.activation_checkpointing = s.trainer.offload_optimizer = true;
  REQUIRE(less_trainer_memory(s) == "lower trainer.micro_batch_tokens");
  REQUIRE_THROWS_WITH(
    within_worker_memory(s, [] { C10_THROW_ERROR(OutOfMemoryError, "CUDA out of memory."); }),
    Catch::StartsWith("algorithm.dedicated.device: ") && Catch::Contains("\"cpu\""));
}

TEST_CASE("NCCL without a device, or without CUDA, is refused in one line") {
  std::string why;
  if (devices_here(why) > 0)
    return;
  try {
    nccl_backend(c10::make_intrusive<c10d::HashStore>(), 0, 2, std::chrono::seconds(5));
    FAIL("it was not refused");
  } catch (const user_error& e) {
    const std::string text = e.what();
    INFO(text);
    REQUIRE_THAT(text, Catch::StartsWith("trainer.device: NCCL"));
    REQUIRE((text.find(model::no_nvidia_driver) != text.npos) == !model::nvidia_driver_here());
    REQUIRE_THAT(text, Catch::Contains("set trainer.device to \"cpu\"")
                         || Catch::Contains("./quickstart build"));
    REQUIRE(text.find('\n') == std::string::npos);
  }
}

TEST_CASE("trainer.device \"cuda\" without a device is refused before anything is loaded") {
  std::string why;
  if (devices_here(why) > 0)
    return;
  auto s = tiny_settings();
  s.trainer.device = compute_device::cuda;
  s.model.path = "/there/is/no/such/folder";
  auto refused = Catch::StartsWith("trainer.device: found \"cuda\"");
  REQUIRE_THROWS_WITH(policy::create(s), refused);
  s.trainer.parallel.dp = 2;
  REQUIRE_THROWS_WITH(policy::create(s), refused);
  if (!why.empty())
    REQUIRE_THAT(why, refused);
}
