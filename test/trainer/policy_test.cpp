// The facade, and resuming.

#include "trainer/policy.hpp"

#ifdef C10_LIKELY
#error "trainer/policy.hpp must not include torch: actors/ builds on it"
#endif

#include "runtime/error.hpp"
#include "test/trainer/scratch_folder.hpp"
#include "test/trainer/toy.hpp"
#include "trainer/checkpoint.hpp"

#include <catch2/catch.hpp>

#include <filesystem>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;
namespace fs = std::filesystem;

namespace {

std::vector<demonstration> demonstrations(const model::tokenizer& tokens, std::uint64_t seed) {
  random_stream random{seed};
  std::vector<demonstration> batch;
  for (int i = 0; i < 8; ++i) {
    auto a = random.below(5), b = random.below(5);
    auto prompt = std::to_string(a) + "+" + std::to_string(b) + "=";
    auto all = tokens.encode(prompt + std::to_string(a + b));
    auto length = static_cast<std::int32_t>(tokens.encode(prompt).size());
    all.push_back(tokens.stop_tokens().front());
    batch.push_back({all, length});
  }
  return batch;
}

std::vector<scored_group> groups_for(version v, int eta) {
  return random_groups(100 + static_cast<std::uint64_t>(v.value), 6, 4, v, eta);
}

void run(policy& p, std::int32_t until, int eta) {
  for (auto v = p.current(); v.value < until; v = v.next())
    p.step(v, groups_for(v, eta));
}

} // namespace

TEST_CASE("N steps equal k steps, save, load and N − k steps, bit for bit") {
  for (auto source : {old_logits_source::recompute, old_logits_source::ewma}) {
    auto s = tiny_settings();
    s.deterministic = true;
    s.trainer.minibatches = 2;
    s.trainer.epochs = 2;
    s.trainer.weight_decay = 0.1;
    s.trainer.lr_schedule = lr_schedule::cosine;
    s.algorithm.old_logits = source;
    s.algorithm.kl = {.coefficient = 0.01, .reference = kl_reference::initial};
    scratch_folder dir;
    auto whole = policy::create(s);
    auto half = policy::create(s);
    for (std::uint64_t i = 0; i < 5; ++i) {
      auto batch = demonstrations(whole.tokenizer(), i);
      whole.warm_up(batch);
      half.warm_up(batch);
      if (i == 2) { // resume within the warm-up too
        fs::create_directory(dir.path / "warm");
        half.save(dir.path / "warm");
        half = policy::load(s, dir.path / "warm");
        REQUIRE(half.warm_up_steps() == 3);
      }
    }
    REQUIRE(same_bits(parameters(whole.views()), parameters(half.views())));
    run(whole, 7, s.rollout.eta);
    run(half, 4, s.rollout.eta);
    checkpoint_store store(dir.path / "checkpoints", 2, [](const std::string&) {});
    store.save(half.current(), [&](const fs::path& folder) { half.save(folder); }, {});
    auto found = store.newest();
    REQUIRE(found);
    auto resumed = policy::load(s, found->folder);
    REQUIRE(resumed.current() == version{4});
    run(resumed, 7, s.rollout.eta);
    REQUIRE(same_bits(parameters(whole.views()), parameters(resumed.views())));
    REQUIRE(resumed.tokenizer().encode("1+2") == whole.tokenizer().encode("1+2"));
    REQUIRE(resumed.config() == whole.config());
  }
}

TEST_CASE("a saved model is a starting point for another run") {
  auto s = tiny_settings();
  scratch_folder dir;
  auto first = policy::create(s);
  first.warm_up(demonstrations(first.tokenizer(), 1));
  first.save_model(dir.path / "model");
  s.model.path = dir.path / "model";
  auto second = policy::create(s);
  REQUIRE(same_bits(parameters(first.views()), parameters(second.views())));
  REQUIRE(second.current() == version{0});
  REQUIRE(second.warm_up_steps() == 0);
}

TEST_CASE("the policy keeps to its order of events") {
  auto s = tiny_settings();
  auto p = policy::create(s);
  auto memory = p.views();
  REQUIRE(!p.remarks().empty()); // one minibatch: the recomputed ratio is always 1
  REQUIRE_THROWS_AS(p.step({1}, groups_for({1}, 1)), invariant_error);
  p.step({0}, groups_for({0}, 0));
  REQUIRE(p.current() == version{1});
  REQUIRE_THROWS_AS(p.step({0}, groups_for({0}, 0)), invariant_error);
  REQUIRE_THROWS_AS(p.warm_up({}), invariant_error);
  auto now = p.views();
  REQUIRE(now.size() == memory.size());
  for (std::size_t i = 0; i < now.size(); ++i) // publishing may register it once
    REQUIRE(now[i].data == memory[i].data);
}

TEST_CASE("folders that are no checkpoint, or another algorithm's, are refused") {
  auto s = tiny_settings();
  scratch_folder dir;
  REQUIRE_THROWS_WITH(policy::load(s, dir.path), Catch::Contains("trainer.json"));
  auto p = policy::create(s);
  p.step({0}, groups_for({0}, 0));
  p.save(dir.path);
  s.algorithm.old_logits = old_logits_source::ewma;
  REQUIRE_THROWS_WITH(policy::load(s, dir.path), Catch::Contains("algorithm.old_logits"));
  s = tiny_settings();
  s.algorithm.advantage.name = "grop";
  REQUIRE_THROWS_AS(policy::create(s), user_error);
  s = tiny_settings();
  s.algorithm.loss = {"ppo_clip", {{"dual_clip_c", 0.5}}};
  REQUIRE_THROWS_WITH(policy::create(s), Catch::Contains("algorithm.loss.params.dual_clip_c"));
  s = tiny_settings();
  s.model.path = "/nowhere";
  REQUIRE_THROWS_AS(policy::create(s), user_error);
}
