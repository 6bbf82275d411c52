#include "runtime/model/model_config.hpp"

#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <sstream>
#include <utility>

namespace millrace::model {
namespace {

using nlohmann::json;

constexpr std::pair<rope_kind, const char*> rope_kinds[] = {
  {rope_kind::plain, "default"}, {rope_kind::linear, "linear"}, {rope_kind::dynamic, "dynamic"},
  {rope_kind::llama3, "llama3"}, {rope_kind::yarn, "yarn"}};

/// A JSON object with its name, for errors that say where.
class fields {
public:
  fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object())
      throw user_error(where_ + ": expected a JSON object, found " + object.type_name());
  }

  [[nodiscard]] bool has(const char* name) const {
    return object_.contains(name) && !object_[name].is_null();
  }

  [[noreturn]] void wrong(const char* name, const char* expected) const {
    throw user_error(where_ + ": \"" + name + "\" is " + object_[name].dump() + ", expected "
                     + expected);
  }

  std::int64_t integer(const char* name) const {
    if (!has(name))
      throw user_error(where_ + ": \"" + name + "\" is missing");
    return integer(name, 0);
  }
  std::int64_t integer(const char* name, std::int64_t otherwise) const {
    if (!has(name))
      return otherwise;
    // Some files write sizes as 1024.0.
    const auto& x = object_[name];
    if (!x.is_number() || x.get<double>() != std::floor(x.get<double>())
        || std::abs(x.get<double>()) > 9e15)
      wrong(name, "a whole number");
    return static_cast<std::int64_t>(x.get<double>());
  }
  double number(const char* name, double otherwise) const {
    if (!has(name))
      return otherwise;
    if (!object_[name].is_number())
      wrong(name, "a number");
    return object_[name].get<double>();
  }
  bool boolean(const char* name, bool otherwise) const {
    if (!has(name))
      return otherwise;
    if (!object_[name].is_boolean())
      wrong(name, "true or false");
    return object_[name].get<bool>();
  }
  std::string text(const char* name, const std::string& otherwise) const {
    if (!has(name))
      return otherwise;
    if (!object_[name].is_string())
      wrong(name, "a string");
    return object_[name].get<std::string>();
  }
  /// One token id or a list of them.
  std::vector<std::int32_t> ids(const char* name) const {
    std::vector<std::int32_t> result;
    if (!has(name))
      return result;
    const auto& x = object_[name];
    for (const auto& id : x.is_array() ? x : json::array({x})) {
      if (!id.is_number_integer() || id.get<std::int64_t>() < 0
          || id.get<std::int64_t>() > 0x7FFFFFFF)
        wrong(name, "a token id or a list of token ids");
      result.push_back(id.get<std::int32_t>());
    }
    return result;
  }
  [[nodiscard]] fields object(const char* name) const {
    return {object_[name], where_ + ": \"" + name + "\""};
  }
  [[nodiscard]] const std::string& where() const { return where_; }

private:
  const json& object_;
  std::string where_;
};

/// How much yarn's attention is sharpened where the file doesn't say: the paper's equation 22, which
/// some models take as a quotient of two.
double attention_factor(const fields& f, double factor) {
  const auto of = [&](double scale) {
    return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1;
  };
  const auto all = f.number("mscale_all_dim", 0), some = f.number("mscale", 0);
  return f.number("attention_factor", all != 0 && some != 0 ? of(some) / of(all) : of(1));
}

rope_kind kind_of(const fields& f) {
  const auto name = f.text("rope_type", f.text("type", "default"));
  for (const auto& [kind, known] : rope_kinds)
    if (name == known)
      return kind;
  throw user_error(f.where() + ": rope scaling \"" + name + "\" is not supported; supported are "
                   "default, linear, dynamic, llama3 and yarn");
}

rope_scaling read_scaling(const fields& f, std::int64_t max_positions) {
  rope_scaling s;
  s.kind = kind_of(f);
  if (s.kind == rope_kind::plain)
    return s;
  s.factor = f.number("factor", 1);
  s.low_freq_factor = f.number("low_freq_factor", s.low_freq_factor);
  s.high_freq_factor = f.number("high_freq_factor", s.high_freq_factor);
  s.original_max_positions =
    f.integer("original_max_position_embeddings",
              s.kind == rope_kind::yarn ? max_positions : s.original_max_positions);
  if (!(s.factor >= 1) || !(s.high_freq_factor > s.low_freq_factor)
      || s.original_max_positions < 1)
    throw user_error(f.where() + ": factor must be at least 1, high_freq_factor above "
                     "low_freq_factor, original_max_position_embeddings positive");
  if (s.kind != rope_kind::yarn)
    return s;
  s.beta_fast = f.number("beta_fast", s.beta_fast);
  s.beta_slow = f.number("beta_slow", s.beta_slow);
  s.truncate = f.boolean("truncate", true);
  s.attention_factor = attention_factor(f, s.factor);
  if (!(s.beta_slow > 0) || !(s.beta_fast >= s.beta_slow) || !(s.attention_factor > 0))
    throw user_error(f.where() + ": beta_slow and attention_factor must be positive, beta_fast at "
                     "least beta_slow");
  return s;
}

void read_rope(const fields& f, model_config& c) {
  c.rope_theta = f.number("rope_theta", c.rope_theta);
  if (f.has("rope_scaling"))
    c.scaling = read_scaling(f.object("rope_scaling"), c.max_position_embeddings);
  if (f.has("rope_parameters")) { // transformers 5 puts both here
    const auto rope = f.object("rope_parameters");
    c.rope_theta = rope.number("rope_theta", c.rope_theta);
    c.scaling = read_scaling(rope, c.max_position_embeddings);
  }
}

void read_features(const fields& f, model_config& c) {
  c.model_type = f.text("model_type", "llama");
  if (c.model_type != "llama" && c.model_type != "qwen2" && c.model_type != "qwen3")
    throw user_error(f.where() + ": model_type \"" + c.model_type
                     + "\" is not supported; supported are llama, qwen2 and qwen3");
  const auto activation = f.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish")
    throw user_error(f.where() + ": hidden_act \"" + activation
                     + "\" is not supported; only silu is");
  if (c.model_type != "llama" && f.boolean("use_sliding_window", false))
    throw user_error(f.where() + ": sliding-window attention (use_sliding_window) is not "
                     "supported");
  const bool attention_bias = f.boolean("attention_bias", false);
  c.qkv_bias = c.model_type == "qwen2" || attention_bias;
  c.output_bias = c.model_type != "qwen2" && attention_bias;
  c.mlp_bias = f.boolean("mlp_bias", false);
  c.qk_norm = c.model_type == "qwen3";
}

json to_json(const rope_scaling& s) {
  json j{{"factor", s.factor}};
  for (const auto& [kind, name] : rope_kinds)
    if (kind == s.kind)
      j["rope_type"] = name;
  if (s.kind == rope_kind::llama3 || s.kind == rope_kind::yarn)
    j["original_max_position_embeddings"] = s.original_max_positions;
  if (s.kind == rope_kind::llama3) {
    j["low_freq_factor"] = s.low_freq_factor;
    j["high_freq_factor"] = s.high_freq_factor;
  }
  if (s.kind == rope_kind::yarn) {
    j["beta_fast"] = s.beta_fast;
    j["beta_slow"] = s.beta_slow;
    j["truncate"] = s.truncate;
    j["attention_factor"] = s.attention_factor;
  }
  return j;
}

json read_json(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in)
    throw user_error(file.string() + ": cannot be read");
  std::stringstream text;
  text << in.rdbuf();
  auto result = json::parse(text.str(), nullptr, false, true);
  if (result.is_discarded())
    throw user_error(file.string() + ": is not valid JSON");
  return result;
}

} // namespace

void model_config::validate(const std::string& where) const {
  const auto need = [&](bool ok, const std::string& what) {
    if (!ok)
      throw user_error(where + ": " + what);
  };
  const auto size = [&](std::int64_t x, std::int64_t most, const char* name) {
    need(x >= 1 && x <= most, "\"" + std::string(name) + "\" is " + std::to_string(x)
                                + ", expected 1 … " + std::to_string(most));
  };
  size(vocab_size, 1 << 24, "vocab_size");
  size(hidden_size, 1 << 20, "hidden_size");
  size(intermediate_size, 1 << 22, "intermediate_size");
  size(num_hidden_layers, 4096, "num_hidden_layers");
  size(num_attention_heads, 4096, "num_attention_heads");
  size(num_key_value_heads, 4096, "num_key_value_heads");
  size(head_dim, 4096, "head_dim");
  size(max_position_embeddings, std::int64_t{1} << 30, "max_position_embeddings");
  need(num_attention_heads % num_key_value_heads == 0,
       "num_attention_heads (" + std::to_string(num_attention_heads)
         + ") must be a multiple of num_key_value_heads (" + std::to_string(num_key_value_heads)
         + ")");
  need(head_dim % 2 == 0, "head_dim is " + std::to_string(head_dim)
                            + ", but rotary embeddings need an even one");
  need(rms_norm_eps >= 0 && rms_norm_eps < 1, "rms_norm_eps must be in [0, 1)");
  need(rope_theta > 0 && std::isfinite(rope_theta), "rope_theta must be positive");
  need(scaling.kind != rope_kind::yarn || rope_theta > 1, "yarn needs a rope_theta above 1");
  need(initializer_range >= 0 && std::isfinite(initializer_range),
       "initializer_range must not be negative");
}

model_config from_json(const json& document, const std::string& where) {
  const fields f(document, where);
  model_config c;
  read_features(f, c);
  c.vocab_size = f.integer("vocab_size");
  c.hidden_size = f.integer("hidden_size");
  c.intermediate_size = f.integer("intermediate_size");
  c.num_hidden_layers = f.integer("num_hidden_layers");
  c.num_attention_heads = f.integer("num_attention_heads");
  c.num_key_value_heads = f.integer("num_key_value_heads", c.num_attention_heads);
  if (!f.has("head_dim") && c.num_attention_heads > 0 && c.hidden_size % c.num_attention_heads)
    throw user_error(where + ": hidden_size (" + std::to_string(c.hidden_size)
                     + ") is no multiple of num_attention_heads ("
                     + std::to_string(c.num_attention_heads) + "), and head_dim is missing");
  c.head_dim = f.integer("head_dim", c.num_attention_heads > 0
                                       ? c.hidden_size / c.num_attention_heads : 0);
  c.max_position_embeddings = f.integer("max_position_embeddings", c.max_position_embeddings);
  c.rms_norm_eps = f.number("rms_norm_eps", c.rms_norm_eps);
  c.initializer_range = f.number("initializer_range", c.initializer_range);
  c.tie_word_embeddings = f.boolean("tie_word_embeddings", false);
  read_rope(f, c);
  c.eos_token_ids = f.ids("eos_token_id");
  if (const auto ids = f.ids("bos_token_id"); !ids.empty())
    c.bos_token_id = ids.front();
  if (f.has("pad_token_id") && f.integer("pad_token_id", -1) >= 0)
    c.pad_token_id = f.ids("pad_token_id").front();
  c.validate(where);
  return c;
}

json to_json(const model_config& c) {
  const char* architecture = c.model_type == "qwen2"   ? "Qwen2ForCausalLM"
                             : c.model_type == "qwen3" ? "Qwen3ForCausalLM"
                                                       : "LlamaForCausalLM";
  json j{{"architectures", {architecture}},
         {"model_type", c.model_type},
         {"vocab_size", c.vocab_size},
         {"hidden_size", c.hidden_size},
         {"intermediate_size", c.intermediate_size},
         {"num_hidden_layers", c.num_hidden_layers},
         {"num_attention_heads", c.num_attention_heads},
         {"num_key_value_heads", c.num_key_value_heads},
         {"head_dim", c.head_dim},
         {"max_position_embeddings", c.max_position_embeddings},
         {"rms_norm_eps", c.rms_norm_eps},
         {"rope_theta", c.rope_theta},
         {"tie_word_embeddings", c.tie_word_embeddings},
         {"initializer_range", c.initializer_range},
         {"hidden_act", "silu"},
         {"attention_dropout", 0.0},
         {"torch_dtype", "float32"},
         {"use_cache", true}};
  if (c.model_type != "qwen2")
    j["attention_bias"] = c.qkv_bias;
  if (c.model_type == "llama")
    j["mlp_bias"] = c.mlp_bias;
  else
    j["use_sliding_window"] = false;
  if (c.scaling.kind != rope_kind::plain)
    j["rope_scaling"] = to_json(c.scaling);
  if (c.eos_token_ids.size() == 1)
    j["eos_token_id"] = c.eos_token_ids.front();
  else if (!c.eos_token_ids.empty())
    j["eos_token_id"] = c.eos_token_ids;
  if (c.bos_token_id >= 0)
    j["bos_token_id"] = c.bos_token_id;
  if (c.pad_token_id >= 0)
    j["pad_token_id"] = c.pad_token_id;
  return j;
}

model_config read_config(const std::filesystem::path& folder) {
  const auto file = folder / "config.json";
  if (!std::filesystem::exists(file))
    throw user_error(folder.string() + ": is not a model folder: it has no config.json");
  auto config = from_json(read_json(file), file.string());
  const auto generation = folder / "generation_config.json";
  if (std::filesystem::exists(generation)) {
    const auto document = read_json(generation);
    const auto ids = fields(document, generation.string()).ids("eos_token_id");
    if (!ids.empty())
      config.eos_token_ids = ids;
  }
  return config;
}

std::vector<parameter_shape> parameter_shapes(const model_config& c) {
  std::vector<parameter_shape> all;
  const auto add = [&](std::string name, std::vector<std::int64_t> shape) {
    all.push_back({std::move(name), std::move(shape)});
  };
  const auto d = c.hidden_size, q = c.query_size(), kv = c.key_value_size();
  const auto ff = c.intermediate_size;
  add("model.embed_tokens.weight", {c.vocab_size, d});
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const auto layer = "model.layers." + std::to_string(i) + ".";
    const auto attention = layer + "self_attn.", mlp = layer + "mlp.";
    add(layer + "input_layernorm.weight", {d});
    add(attention + "q_proj.weight", {q, d});
    add(attention + "k_proj.weight", {kv, d});
    add(attention + "v_proj.weight", {kv, d});
    if (c.qkv_bias) {
      add(attention + "q_proj.bias", {q});
      add(attention + "k_proj.bias", {kv});
      add(attention + "v_proj.bias", {kv});
    }
    if (c.qk_norm) {
      add(attention + "q_norm.weight", {c.head_dim});
      add(attention + "k_norm.weight", {c.head_dim});
    }
    add(attention + "o_proj.weight", {d, q});
    if (c.output_bias)
      add(attention + "o_proj.bias", {d});
    add(layer + "post_attention_layernorm.weight", {d});
    add(mlp + "gate_proj.weight", {ff, d});
    add(mlp + "up_proj.weight", {ff, d});
    if (c.mlp_bias) {
      add(mlp + "gate_proj.bias", {ff});
      add(mlp + "up_proj.bias", {ff});
    }
    add(mlp + "down_proj.weight", {d, ff});
    if (c.mlp_bias)
      add(mlp + "down_proj.bias", {d});
  }
  add("model.norm.weight", {d});
  if (!c.tie_word_embeddings)
    add("lm_head.weight", {c.vocab_size, d});
  return all;
}

} // namespace millrace::model
