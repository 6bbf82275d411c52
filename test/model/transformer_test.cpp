#include "runtime/error.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/transformer.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "model_fixture.hpp"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::model;

namespace {

std::vector<std::vector<std::int32_t>> sequences_of(std::uint64_t seed,
                                                    const std::vector<std::int64_t>& lengths,
                                                    std::int64_t vocabulary) {
  random_stream draws(seed);
  std::vector<std::vector<std::int32_t>> all;
  for (const auto n : lengths)
    all.push_back(test::random_tokens(draws, n, vocabulary));
  return all;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// Norms and biases away from 1 and 0, so that their gradients matter.
void disturb(transformer& t, std::uint64_t seed) {
  const c10::NoGradGuard guard;
  random_stream draws(seed);
  auto flat = t.flat();
  for (std::int64_t i = 0; i < flat.numel(); ++i)
    flat.mutable_data_ptr<float>()[i] += 0.1F * draws.normal();
}

at::Tensor loss_of(const transformer& t, const packed_batch& b) {
  const auto logp = at::log_softmax(t.logits(b), -1);
  return -logp.gather(1, ((b.tokens * 7 + 3) % t.config().vocab_size).unsqueeze(1)).mean()
         + 0.01 * t.hidden(b).pow(2).mean();
}

} // namespace

TEST_CASE("the fused forward and backward equal the composed ones in double precision") {
  for (const char* type : {"llama", "qwen2", "qwen3"}) {
    auto c = test::small_config(type);
    c.output_bias = c.mlp_bias = c.model_type == "llama";
    transformer fast(c), exact(c, at::TensorOptions(at::kDouble));
    fast.initialise(3);
    disturb(fast, 4);
    {
      const c10::NoGradGuard guard;
      exact.flat().copy_(fast.flat());
    }
    // 0, 1, around a strip of 16 and around a block of 64 rows
    const auto batch = pack(sequences_of(5, {7, 0, 1, 16, 17, 64, 65, 90, 33}, c.vocab_size));
    const auto a = fast.hidden(batch), b = exact.hidden(batch);
    INFO(type);
    REQUIRE(difference(a, b) < 2e-4);
    loss_of(fast, batch).backward();
    loss_of(exact, batch).backward();
    for (std::size_t i = 0; i < fast.parameters().size(); ++i) {
      const auto& p = fast.parameters()[i];
      const auto g = p.value.grad(), h = exact.parameters()[i].value.grad();
      INFO(p.name);
      REQUIRE(g.defined());
      REQUIRE(difference(g, h) < 1e-6 + 2e-4 * h.abs().max().item<double>());
    }
  }
}

TEST_CASE("a sequence's hidden states do not depend on its neighbours") {
  transformer t(test::small_config());
  t.initialise(1);
  const c10::NoGradGuard guard;
  const auto all = sequences_of(2, {20, 5, 41}, 37);
  const auto together = t.hidden(pack(all));
  std::int64_t at = 0;
  for (const auto& s : all) {
    const auto n = static_cast<std::int64_t>(s.size());
    REQUIRE(difference(together.narrow(0, at, n), t.hidden(pack({s}))) < 1e-5);
    at += n;
  }
  REQUIRE(t.hidden(pack({})).size(0) == 0);
}

TEST_CASE("answers that continue a shared prompt equal those with a prompt each") {
  for (const char* type : {"llama", "qwen3"})
    for (const auto number : {at::kFloat, at::kDouble}) { // fused, composed
      transformer shared(test::small_config(type), at::TensorOptions(number)),
        apart(test::small_config(type), at::TensorOptions(number));
      {
        transformer values(test::small_config(type));
        values.initialise(7);
        const c10::NoGradGuard guard;
        shared.flat().copy_(values.flat());
        apart.flat().copy_(values.flat());
      }
      // A lone sequence, prompts of 1, 17 and 70 with answers, an empty one among them.
      const std::vector<std::vector<std::int64_t>> trees{{9}, {1, 3, 1}, {17, 5, 0, 20}, {70, 2, 18}};
      std::vector<std::vector<std::int32_t>> parts, whole;
      packed_batch batch;
      std::vector<std::int32_t> prefixes;
      std::vector<std::int64_t> rows, twins; // of `batch`, of its unshared twin
      std::int64_t at = 0, twin = 0;
      for (const auto& tree : trees) {
        const auto drawn = sequences_of(100 + tree[0], tree, 37);
        const auto root = static_cast<std::int32_t>(parts.size()), root_at = std::int32_t(at);
        for (std::size_t i = 0; i < drawn.size(); ++i) {
          parts.push_back(drawn[i]);
          prefixes.push_back(i == 0 ? -1 : root);
          if (i > 0 || drawn.size() == 1) {
            auto joined = i == 0 ? std::vector<std::int32_t>{} : drawn[0];
            joined.insert(joined.end(), drawn[i].begin(), drawn[i].end());
            for (std::size_t j = 0; j < joined.size(); ++j) {
              const auto before = i == 0 ? std::size_t{0} : drawn[0].size();
              rows.push_back(j < before ? root_at + std::int64_t(j)
                                        : at + std::int64_t(j - before));
              twins.push_back(twin++);
            }
            whole.push_back(std::move(joined));
          }
          at += static_cast<std::int64_t>(drawn[i].size());
        }
      }
      batch = pack(parts);
      batch.prefixes = prefixes;
      for (std::size_t s = 0; s < prefixes.size(); ++s)
        if (prefixes[s] >= 0)
          batch.positions.narrow(0, batch.cu_seqlens[s], std::int64_t(parts[s].size()))
            .add_(std::int64_t(parts[static_cast<std::size_t>(prefixes[s])].size()));
      const auto a = shared.hidden(batch).index_select(0, at::tensor(rows));
      const auto b = apart.hidden(pack(whole)).index_select(0, at::tensor(twins));
      INFO(type << " " << number);
      REQUIRE(difference(a, b) < 1e-5);
      const auto weights = at::sin(at::arange(a.numel(), at::TensorOptions(number))).view_as(a);
      (a * weights).sum().backward();
      (b * weights).sum().backward();
      for (std::size_t i = 0; i < shared.parameters().size(); ++i) {
        const auto& p = shared.parameters()[i];
        const auto g = p.value.grad(), h = apart.parameters()[i].value.grad();
        if (!h.defined()) // an untied head
          continue;
        INFO(p.name);
        REQUIRE(difference(g, h) < 1e-6 + 1e-5 * h.abs().max().item<double>());
      }
    }
}

TEST_CASE("gradients gather in one flat buffer") {
  transformer t(test::small_config()), u(test::small_config());
  t.initialise(1);
  u.initialise(1);
  const auto batch = pack(sequences_of(3, {9, 12}, 37));
  auto g = t.flat_gradient();
  loss_of(t, batch).backward();
  loss_of(t, batch).backward();
  loss_of(u, batch).backward();
  for (std::size_t i = 0; i < t.parameters().size(); ++i) {
    const auto& p = t.parameters()[i].value;
    REQUIRE(p.grad().storage().data() == g.storage().data());
    REQUIRE(difference(p.grad(), 2 * u.parameters()[i].value.grad()) < 1e-5);
  }
  g.zero_();
  REQUIRE(t.parameters()[3].value.grad().abs().max().item<float>() == 0);
}

TEST_CASE("a frozen copy keeps its values and takes no gradient") {
  transformer t(test::small_config());
  t.initialise(9);
  const auto copy = t.frozen_copy();
  const auto batch = pack(sequences_of(3, {9}, 37));
  const auto before = copy.hidden(batch);
  REQUIRE_FALSE(before.requires_grad());
  {
    const c10::NoGradGuard guard;
    t.flat().mul_(2);
  }
  REQUIRE(difference(copy.hidden(batch), before) == 0);
  REQUIRE(difference(t.hidden(batch), before) > 0);
}

TEST_CASE("a model survives its folder") {
  const test::scratch_folder folder;
  for (const char* type : {"llama", "qwen2", "qwen3"}) {
    transformer t(test::small_config(type));
    t.initialise(5);
    const auto tokens = make_character_tokenizer({"abcdef", false});
    save_checkpoint(folder.path(), t.config(), t.views(), tokens.get());
    const auto back = load_model(folder.path());
    REQUIRE(back.network.config() == t.config());
    REQUIRE(at::equal(back.network.flat(), t.flat()));
    REQUIRE(back.tokens->vocabulary_size() == 9);
  }
}

TEST_CASE("malformed batches are refused") {
  transformer t(test::small_config());
  auto batch = pack({{1, 2, 3}});
  batch.cu_seqlens = {0, 2};
  REQUIRE_THROWS_AS(t.hidden(batch), invariant_error);
  batch.cu_seqlens = {0, 4, 3};
  REQUIRE_THROWS_AS(t.hidden(batch), invariant_error);
  batch = pack({{1}, {2}, {3}});
  for (const auto& wrong : {std::vector<std::int32_t>{-1}, {0, -1, -1}, {-1, -1, 0}, {-1, 0, 1}}) {
    batch.prefixes = wrong;
    REQUIRE_THROWS_AS(t.hidden(batch), invariant_error);
  }
}
