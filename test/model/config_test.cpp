#include "model_fixture.hpp"

#include "runtime/error.hpp"
#include "runtime/model/model_config.hpp"

#include <nlohmann/json.hpp>

#include <catch2/catch.hpp>

#include <cmath>

using namespace millrace;
using namespace millrace::model;
using nlohmann::json;

namespace {

std::string error_of(const json& document) {
  try {
    from_json(document, "config.json");
  } catch (const user_error& e) {
    return e.what();
  }
  return "";
}

} // namespace

TEST_CASE("a configuration survives writing and reading") {
  for (const char* type : {"llama", "qwen2", "qwen3"}) {
    auto c = test::small_config(type);
    c.eos_token_ids = {2, 5};
    c.bos_token_id = 1;
    c.pad_token_id = 0;
    if (c.model_type == "llama")
      c.scaling = {rope_kind::llama3, 8, 1, 4, 64};
    REQUIRE(from_json(to_json(c), "x") == c);
  }
  auto c = test::small_config();
  for (const auto kind : {rope_kind::linear, rope_kind::dynamic}) {
    c.scaling = {kind, 2.5};
    REQUIRE(from_json(to_json(c), "x") == c);
  }
  c.scaling = {rope_kind::yarn, 4, 1, 4, 32, 16, 2, false, 1.25};
  REQUIRE(from_json(to_json(c), "x") == c);
}

TEST_CASE("published configurations are read") {
  const auto llama = from_json(json::parse(R"({"architectures": ["LlamaForCausalLM"],
    "attention_bias": false, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
    "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "vocab_size": 128256})"), "x");
  REQUIRE(llama.eos_token_ids.size() == 3);
  REQUIRE(llama.scaling.kind == rope_kind::llama3);
  REQUIRE(llama.tie_word_embeddings);
  REQUIRE_FALSE(llama.qkv_bias);
  const auto qwen = from_json(json::parse(R"({"hidden_act": "silu", "hidden_size": 896,
    "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
    "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "use_sliding_window": false, "tie_word_embeddings": true,
    "vocab_size": 151936})"), "x");
  REQUIRE(qwen.qkv_bias);
  REQUIRE_FALSE(qwen.output_bias);
  REQUIRE(qwen.head_dim == 64);
}

TEST_CASE("what the transformer does not have is refused by name") {
  const auto good = to_json(test::small_config());
  const auto with = [&](const char* key, const json& value) {
    auto j = good;
    j[key] = value;
    return error_of(j);
  };
  REQUIRE(error_of(good).empty());
  REQUIRE(with("model_type", "gpt2").find("\"gpt2\"") != std::string::npos);
  REQUIRE(with("hidden_act", "gelu").find("gelu") != std::string::npos);
  REQUIRE(with("rope_scaling", {{"rope_type", "longrope"}, {"factor", 4}}).find("\"longrope\"")
          != std::string::npos);
  REQUIRE(with("rope_scaling", {{"rope_type", "yarn"}, {"factor", 0.5}}).find("factor")
          != std::string::npos);
  REQUIRE(with("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}, {"beta_slow", 40}})
            .find("beta_fast") != std::string::npos);
  REQUIRE(with("hidden_size", "many").find("\"many\"") != std::string::npos);
  REQUIRE(with("hidden_size", 0).find("hidden_size") != std::string::npos);
  REQUIRE(with("hidden_size", -1e300).find("hidden_size") != std::string::npos);
  REQUIRE(with("num_key_value_heads", 4).find("multiple") != std::string::npos);
  REQUIRE(with("head_dim", 7).find("even") != std::string::npos);
  REQUIRE(with("eos_token_id", "end").find("eos_token_id") != std::string::npos);
  auto missing = good;
  missing.erase("vocab_size");
  REQUIRE(error_of(missing).find("\"vocab_size\" is missing") != std::string::npos);
  REQUIRE(error_of(json::array()).find("object") != std::string::npos);
}

TEST_CASE("yarn scaling is that of transformers") {
  // By transformers.modeling_rope_utils, of version 4.57.6.
  const auto config = [](std::int64_t dim, double theta, const json& scaling) {
    auto j = to_json(test::small_config());
    j["head_dim"] = dim;
    j["rope_theta"] = theta;
    j["max_position_embeddings"] = 2048;
    j["rope_scaling"] = scaling;
    j["rope_scaling"]["rope_type"] = "yarn";
    return from_json(j, "config.json");
  };
  const auto same = [](const model_config& c, const std::vector<float>& frequencies, double factor) {
    REQUIRE(c.scaling.attention_factor == Approx(factor).epsilon(1e-12));
    const auto found = rope_inverse_frequencies(c);
    REQUIRE(found.size() == frequencies.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      REQUIRE(found[i] == Approx(frequencies[i]).epsilon(1e-6));
    const auto tables = make_rope_tables(c, 3);
    REQUIRE(tables.cos[0] == static_cast<float>(factor));
    REQUIRE(tables.sin[2 * found.size()]
            == Approx(factor * std::sin(2.0 * frequencies[0])).epsilon(1e-6));
  };
  same(config(16, 1e6, {{"factor", 4.0}, {"original_max_position_embeddings", 32768}}),
       {1.0F, 0.177827939F, 0.0316227786F, 0.00421755994F, 0.000500000024F, 4.44569851e-05F,
        7.90569356e-06F, 1.40585337e-06F}, 1.138629436111989);
  same(config(16, 1e4, {{"factor", 40.0}, {"original_max_position_embeddings", 4096},
                        {"mscale", 0.707}, {"mscale_all_dim", 1.0}}),
       {1.0F, 0.316227764F, 0.100000001F, 0.0239147246F, 0.00512499968F, 0.000849862176F,
        2.49999994e-05F, 7.90569447e-06F}, 0.9210423553163399);
  same(config(12, 5e5, {{"factor", 2.5}, {"truncate", false}, {"beta_fast", 16}, {"beta_slow", 2}}),
       {1.0F, 0.112246193F, 0.00765523128F, 0.00056568539F, 6.34960234e-05F, 7.12719157e-06F},
       1.0916290731874154);
}

TEST_CASE("llama3 scaling keeps short wavelengths and stretches long ones") {
  auto c = test::small_config();
  c.head_dim = 64;
  c.rope_theta = 500000;
  const auto plain = rope_inverse_frequencies(c);
  c.scaling = {rope_kind::llama3, 8, 1, 4, 8192};
  const auto scaled = rope_inverse_frequencies(c);
  REQUIRE(scaled.front() == plain.front());
  REQUIRE(scaled.back() == Approx(plain.back() / 8));
  for (std::size_t i = 0; i < plain.size(); ++i) {
    REQUIRE(scaled[i] <= plain[i]);
    REQUIRE(scaled[i] >= plain[i] / 8.001F);
  }
}
