// The decoder for devices, on the CPU device, beside the CPU's own decoder.

#include "runtime/model/device_decoder.hpp"

#include "runtime/model/cpu_decoder.hpp"
#include "runtime/model/weight_transfer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "device_decoder_fixture.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <set>

using namespace millrace;
using namespace millrace::model;
using test::context, test::pool, test::device_decoder_of, test::weights;

namespace {

std::vector<model_config> configs() {
  std::vector<model_config> all{test::small_config("llama"), test::small_config("qwen2"),
                                test::small_config("qwen3")};
  auto c = test::small_config(); // odd sizes, one key head, every bias
  c.hidden_size = 33;
  c.intermediate_size = 41;
  c.num_attention_heads = 5;
  c.num_key_value_heads = 1;
  c.head_dim = 14;
  c.qkv_bias = c.output_bias = c.mlp_bias = true;
  all.push_back(c);
  c = test::small_config(); // as many key heads as query heads, stretched rotation
  c.num_key_value_heads = 6;
  c.scaling.kind = rope_kind::llama3;
  c.scaling.factor = 4;
  c.scaling.original_max_positions = 32;
  all.push_back(c);
  c = test::small_config("qwen3");
  c.scaling.kind = rope_kind::yarn;
  c.scaling.factor = 2;
  c.scaling.original_max_positions = 48;
  c.scaling.attention_factor = 1.07;
  all.push_back(c);
  return all;
}

struct sequence {
  std::vector<std::int32_t> tokens, blocks;
  std::int32_t done = 0;
};

/// Sequences whose blocks lie anywhere.
std::vector<sequence> sequences_for(const model_config& config, random_stream& draws, int count) {
  std::vector<std::int32_t> blocks(pool);
  std::iota(blocks.begin(), blocks.end(), 0);
  for (std::size_t i = blocks.size(); i > 1; --i)
    std::swap(blocks[i - 1], blocks[draws.below(i)]);
  std::vector<sequence> all(static_cast<std::size_t>(count));
  auto next = blocks.begin();
  for (auto& s : all) {
    const auto length = 1 + static_cast<std::int32_t>(draws.below(context));
    s.tokens = test::random_tokens(draws, length, config.vocab_size);
    s.blocks.assign(next, next + blocks_for(length));
    next += blocks_for(length);
  }
  return all;
}

/// Computes all sequences in both decoders, in pieces of random lengths, some of one token, some
/// together; calls compare(logits, logits, vocabulary) for each row that was wanted.
template <class Compare>
void side_by_side(decoder& a, decoder& b, std::vector<sequence> all, random_stream& draws,
                  Compare compare) {
  while (true) {
    std::vector<token_run> runs;
    for (auto& s : all) {
      const auto left = static_cast<std::int32_t>(s.tokens.size()) - s.done;
      if (left == 0 || draws.below(4) == 0)
        continue;
      const auto most = draws.below(3) == 0 ? 1 : std::min<std::int32_t>(left, 21);
      const auto take = 1 + static_cast<std::int32_t>(draws.below(static_cast<std::uint64_t>(most)));
      runs.push_back({std::span(s.tokens).subspan(static_cast<std::size_t>(s.done),
                                                  static_cast<std::size_t>(take)),
                      s.done, s.blocks.data(), draws.below(3) > 0});
      s.done += take;
    }
    if (runs.empty())
      continue;
    a.forward(runs);
    b.forward(runs);
    std::size_t wanted = 0;
    for (const auto& r : runs)
      if (r.wants_logits) {
        compare(a.logits(wanted), b.logits(wanted), a.config().vocab_size);
        ++wanted;
      }
    if (std::all_of(all.begin(), all.end(), [](const auto& s) {
          return s.done == static_cast<std::int32_t>(s.tokens.size());
        }))
      return;
  }
}

/// Mean and largest difference of log-probs from the CPU's decoder in fp32.
struct distance {
  double sum = 0, largest = 0, count = 0;
  void operator()(const float* a, const float* b, std::int64_t n) {
    const auto log_sum = [n](const float* x) {
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i)
        sum += std::exp(static_cast<double>(x[i]));
      return std::log(sum);
    };
    const auto sa = log_sum(a), sb = log_sum(b);
    for (std::int64_t i = 0; i < n; ++i, ++count) {
      const auto d = std::abs((a[i] - sa) - (b[i] - sb));
      sum += d;
      largest = std::max(largest, d);
    }
  }
  [[nodiscard]] double mean() const { return sum / count; }
};

distance measure(const model_config& config, dtype type, std::uint64_t seed) {
  const weights w(config, seed);
  cpu_decoder wide(config, pool, context, 1);
  const auto other = device_decoder_of(config, type);
  transfer_weights(w.views, wide.staging());
  transfer_weights(w.views, other->staging());
  wide.swap();
  other->swap();
  random_stream draws(seed, 2);
  distance d;
  for (int round = 0; round < 3; ++round)
    side_by_side(wide, *other, sequences_for(config, draws, 6), draws, std::ref(d));
  return d;
}

} // namespace

TEST_CASE("by libtorch a decoder computes the CPU decoder's logits") {
  for (const std::uint64_t seed : {1, 2, 3})
    for (const auto& config : configs()) {
      const weights w(config, seed);
      cpu_decoder one(config, pool, context, 1);
      const auto other = device_decoder_of(config, dtype::f32);
      transfer_weights(w.views, one.staging());
      transfer_weights(w.views, other->staging());
      one.swap();
      other->swap();
      random_stream draws(seed, 2);
      double worst = 0;
      for (int round = 0; round < 3; ++round) // caches that held something else before
        side_by_side(one, *other, sequences_for(config, draws, 6), draws,
                     [&](const float* a, const float* b, std::int64_t n) {
                       for (std::int64_t i = 0; i < n; ++i)
                         worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
                     });
      INFO("seed " << seed << ", " << config.model_type << ", hidden " << config.hidden_size
                   << ": " << worst);
      REQUIRE(worst < 1e-4);
      REQUIRE(worst > 0); // they are two computations
    }
}

TEST_CASE("narrow weights on a device stay near the wide ones") {
  for (const auto& config : configs())
    for (const auto& [type, bound] : {std::pair{dtype::bf16, 0.03}, {dtype::f8_e4m3, 0.15}}) {
      const auto d = measure(config, type, 7);
      INFO(config.model_type << ", hidden " << config.hidden_size << ": mean " << d.mean()
                             << ", largest " << d.largest);
      REQUIRE(d.mean() < bound);
      REQUIRE(d.mean() > 1e-4); // it really computes in the other precision
    }
}

TEST_CASE("a block that was copied is the block") {
  const auto config = test::small_config();
  const weights w(config, 3);
  const auto d = device_decoder_of(config, dtype::f32);
  transfer_weights(w.views, d->staging());
  d->swap();
  random_stream draws(4);
  const auto tokens = test::random_tokens(draws, 30, config.vocab_size);
  const std::vector<std::int32_t> first{7, 9}, second{7, 2}; // the first block is shared
  const auto tail = [&](const std::vector<std::int32_t>& blocks, std::size_t from) {
    const token_run run{std::span(tokens).subspan(from), static_cast<std::int32_t>(from),
                        blocks.data(), true};
    d->forward({&run, 1});
    return std::vector<float>(d->logits(0), d->logits(0) + config.vocab_size);
  };
  const auto expected = tail(first, 0);
  d->copy_block(9, 2);
  const auto found = tail(second, 28);
  for (std::size_t i = 0; i < found.size(); ++i)
    REQUIRE(std::abs(found[i] - expected[i]) < 1e-4F);
}

namespace {

constexpr std::int32_t strange = 5; ///< a token whose embedding is not a number

/// A decoder with weights that are fine but for that.
std::unique_ptr<decoder> strange_decoder(const model_config& config, dtype type) {
  const weights w(config, 6);
  for (const auto& v : w.views)
    if (v.name == "model.embed_tokens.weight")
      std::fill_n(reinterpret_cast<float*>(v.data) + strange * config.hidden_size,
                  config.hidden_size, std::numeric_limits<float>::quiet_NaN());
  auto d = device_decoder_of(config, type);
  transfer_weights(w.views, d->staging());
  d->swap();
  return d;
}

std::vector<float> logits_of(decoder& d, const std::vector<token_run>& runs) {
  d.forward(runs);
  const auto n = static_cast<std::size_t>(d.config().vocab_size);
  std::vector<float> all;
  for (std::size_t i = 0; i < runs.size(); ++i)
    all.insert(all.end(), d.logits(i), d.logits(i) + n);
  return all;
}

bool all_finite(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
}

} // namespace

TEST_CASE("what was not a number in a block that is used again does not reach others") {
  for (const auto* model : {"llama", "qwen2"})
    for (const auto type : {dtype::f32, dtype::bf16, dtype::f8_e4m3}) {
      const auto config = test::small_config(model);
      const auto used = strange_decoder(config, type), fresh = strange_decoder(config, type);
      const std::vector<std::int32_t> bad(block_tokens, strange);
      for (std::int32_t b = 0; b < pool; ++b) // the whole cache
        REQUIRE(std::isnan(logits_of(*used, {{bad, 0, &b, true}})[0]));
      random_stream draws(12);
      auto sequences = sequences_for(config, draws, 6);
      for (auto& s : sequences)
        std::replace(s.tokens.begin(), s.tokens.end(), strange, strange + 1);
      side_by_side(*used, *fresh, sequences, draws, [](const float* a, const float* b, auto n) {
        REQUIRE(all_finite({a, a + n}));
        REQUIRE(std::equal(a, a + n, b));
      });
    }
}

TEST_CASE("what was not a number behind a prompt does not come with its copied block") {
  const auto config = test::small_config();
  const auto used = strange_decoder(config, dtype::f32), fresh = strange_decoder(config, dtype::f32);
  const std::vector<std::int32_t> prompt{1, 2, 3, 4, 6, 7, 8}, bad{strange, strange};
  const std::vector<std::int32_t> answer{9, 10, 11, 12};
  const std::int32_t from = 3, one = 8, several = 9;
  for (auto* d : {used.get(), fresh.get()})
    REQUIRE(all_finite(logits_of(*d, {{prompt, 0, &from, true}})));
  REQUIRE_FALSE(all_finite(logits_of(*used, {{bad, 7, &from, true}}))); // its own answer
  const auto go_on = [&](decoder& d) {
    d.copy_block(from, one);
    d.copy_block(from, several);
    const std::span tokens(answer);
    auto all = logits_of(d, {{tokens.first(1), 7, &one, true}, {tokens.first(2), 7, &several, true}});
    const auto more = logits_of(d, {{tokens.subspan(1, 1), 8, &one, true},
                                    {tokens.subspan(2), 9, &several, true}});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto found = go_on(*used);
  REQUIRE(all_finite(found));
  REQUIRE(found == go_on(*fresh));
}

TEST_CASE("staged weights count from the swap on") {
  const auto config = test::small_config("qwen3");
  const weights w(config, 1), next(config, 2);
  const auto d = device_decoder_of(config, dtype::bf16);
  const std::vector<std::int32_t> tokens{1, 2, 3}, blocks{0};
  const token_run run{tokens, 0, blocks.data(), true};
  const auto logits = [&] {
    d->forward({&run, 1});
    return std::vector<float>(d->logits(0), d->logits(0) + config.vocab_size);
  };
  REQUIRE_THROWS(d->forward({&run, 1}));
  transfer_weights(w.views, d->staging());
  d->swap();
  const auto before = logits();
  transfer_weights(next.views, d->staging());
  d->prepare();
  REQUIRE(logits() == before);
  d->swap();
  REQUIRE(logits() != before);
  transfer_weights(w.views, d->staging());
  d->swap();
  REQUIRE(logits() == before);
}

namespace {

/// Libtorch has these for this device in Python only.
at::Tensor shape_of_index_select(const at::Tensor& x, std::int64_t dim, const at::Tensor& index) {
  auto shape = x.sizes().vec();
  shape.at(static_cast<std::size_t>(dim)) = index.numel();
  return at::empty(shape, x.options());
}

at::Tensor shape_of_attention(const at::Tensor& q, const at::Tensor&, const at::Tensor&,
                              const std::optional<at::Tensor>&, double, bool,
                              std::optional<double>, bool) {
  return at::empty_like(q);
}

at::Tensor shape_of_abs(const at::Tensor& x) { return at::empty_like(x); }

at::Tensor shape_of_where(const at::Tensor&, const at::Tensor&, const at::Tensor& b) {
  return at::empty_like(b);
}

TORCH_LIBRARY_IMPL(aten, Meta, m) {
  m.impl("abs", shape_of_abs);
  m.impl("where.self", shape_of_where);
  m.impl("index_select", shape_of_index_select);
  m.impl("scaled_dot_product_attention", shape_of_attention);
}

/// Operations that took tensors of several devices: scalars in host memory aside, and copies, which
/// are there for that.
std::set<std::string> mixing;

void note_devices(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
  std::set<c10::DeviceType> seen;
  const auto note = [&](const at::Tensor& t) {
    if (t.defined() && !(t.is_cpu() && t.dim() == 0))
      seen.insert(t.device().type());
  };
  for (const auto& v : torch::jit::last(*stack, op.schema().arguments().size()))
    if (v.isTensor())
      note(v.toTensor());
    else if (v.isTensorList())
      for (const at::Tensor& t : v.toTensorVector())
        note(t);
  const auto& name = op.schema().name();
  if (seen.size() > 1 && name.find("copy_") == std::string::npos)
    mixing.insert(name);
  // Its key is out of this call only, so that what the operation consists of is seen as well.
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER,
                                                c10::DispatchKey::TESTING_ONLY_GenericMode), stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&note_devices>());
}

} // namespace

TEST_CASE("no operation mixes memories") {
  // On the meta device tensors have a place but no values: what would mix it with host memory shows.
  mixing.clear();
  const c10::impl::IncludeDispatchKeyGuard watched(c10::DispatchKey::TESTING_ONLY_GenericMode);
  const auto there = at::ones({2, 2}, at::TensorOptions(c10::kMeta));
  try {
    at::mm(there, at::ones({2, 2})); // that would be noticed
  } catch (const c10::Error&) {
  }
  REQUIRE(mixing.erase("aten::mm") == 1);
  for (const auto& config : configs())
    for (const auto type : {dtype::f32, dtype::bf16, dtype::f8_e4m3}) {
      const auto d = make_device_decoder(c10::Device(c10::kMeta), config, {pool, context, 1, type});
      d->swap();
      std::vector<std::int32_t> tokens(20, 1), blocks{3, 1, 2};
      const auto part = [&](std::int32_t start, std::size_t n, bool wants) {
        return token_run{std::span(tokens).first(n), start, blocks.data(), wants};
      };
      const std::vector<token_run> runs{part(0, 20, false), part(25, 1, false), part(20, 7, false),
                                        part(3, 1, false)};
      d->forward(runs);
      d->copy_block(1, 2);
      const auto wants = part(0, 1, true);
      REQUIRE_THROWS(d->forward({&wants, 1})); // there are no logits to read back
    }
  for (const auto& name : mixing)
    UNSCOPED_INFO(name);
  REQUIRE(mixing.empty());
}
