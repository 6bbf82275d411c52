#pragma once

#include "actors/openai_server.hpp"
#include "runtime/atomic_file.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/scratch_folder.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <httplib.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <thread>

namespace millrace::test {

using namespace millrace::openai;

/// Makes them give no finite logits.
inline void spoil(const std::vector<tensor_view>& weights) {
  for (const auto& w : weights)
    if (w.name == "model.norm.weight")
      *reinterpret_cast<float*>(w.data) = std::numeric_limits<float>::quiet_NaN();
}

/// A small model with a byte-pair tokenizer and a chat template, in a folder.
class model_folder {
public:
  explicit model_folder(std::uint64_t seed) {
    std::ifstream in(std::string(MILLRACE_GOLDEN_DIR) + "/tokenizers.json");
    const auto golden = nlohmann::json::parse(in);
    for (const auto& c : golden["cases"])
      if (c["name"] == "qwen2")
        write_file_atomically(path_ / "tokenizer.json", c["tokenizer"].dump());
    write_file_atomically(
      path_ / "tokenizer_config.json",
      nlohmann::json{{"eos_token", "<|im_end|>"},
                     {"chat_template",
                      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"}}
        .dump());
    tokens = model::load_tokenizer(path_);
    config.vocab_size = tokens->vocabulary_size();
    config.hidden_size = 32;
    config.intermediate_size = 48;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 4;
    config.num_key_value_heads = 2;
    config.head_dim = 8;
    config.max_position_embeddings = 4096;
    config.initializer_range = 0.3;
    auto e = engine();
    model::initialise(config, e->staging(), seed);
    model::save_checkpoint(path_, config, e->staging());
  }

  [[nodiscard]] std::unique_ptr<generation::engine> engine() const {
    generation::engine_options o;
    o.max_batch = 8;
    return generation::make_engine(o, config, tokens);
  }
  [[nodiscard]] std::unique_ptr<generation::engine> loaded() const {
    auto e = engine();
    model::load_checkpoint(path_, e->staging());
    e->prepare();
    e->install({0});
    return e;
  }
  /// One that fails in the middle of answers: its weights are no numbers.
  [[nodiscard]] std::unique_ptr<generation::engine> failing() const {
    auto e = engine();
    model::load_checkpoint(path_, e->staging());
    spoil(e->staging());
    e->prepare();
    e->install({0});
    return e;
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  model::model_config config;
  std::shared_ptr<const model::tokenizer> tokens;

private:
  scratch_folder folder_{"millrace-test"};
  std::filesystem::path path_ = folder_.path();
};

/// A server in a thread of this process.
struct running_server {
  explicit running_server(const model_folder& m, std::size_t queue = 64, std::string token = {},
                          int port = 0, std::unique_ptr<generation::engine> engine = {})
    : chat(m.tokens->chat()),
      served{"small", m.tokens.get(), &chat, m.config.max_position_embeddings, m.config.vocab_size},
      service(engine ? std::move(engine) : m.loaded(), {queue}),
      http({.port = port, .token = std::move(token)}, service, served),
      thread([this] { http.run(); }) {}
  ~running_server() {
    http.stop();
    thread.join();
  }
  [[nodiscard]] std::string url() const {
    return "http://127.0.0.1:" + std::to_string(http.port());
  }
  [[nodiscard]] httplib::Client client() const {
    httplib::Client c(url());
    c.set_read_timeout(test::patience);
    return c;
  }
  json post(const std::string& path, const json& body, int status = 200) const {
    const auto r = client().Post(path.c_str(), body.dump(), "application/json");
    REQUIRE(r);
    INFO(r->body);
    REQUIRE(r->status == status);
    return json::parse(r->body);
  }
  [[nodiscard]] bool falls_idle() {
    return test::comes_true([this] { return service.outstanding() == 0; });
  }

  model::chat_template chat;
  served_model served;
  generation::generation_service service;
  server http;
  std::thread thread;
};

inline rollout answered(generation::engine& e, const std::vector<std::int32_t>& prompt,
                 const sampling_params& sampling) {
  rollout r;
  r.id = {0, 0};
  r.prompt_length = static_cast<std::int32_t>(prompt.size());
  r.tokens = prompt;
  r.behaviour_logp.assign(prompt.size(), 0);
  r.versions.assign(prompt.size(), -1);
  e.submit({r, sampling});
  for (;;)
    for (auto& done : e.step())
      return done;
}

/// Two letters or digits of a text, which it can be cut at.
inline std::string ascii_piece(const std::string& text) {
  for (std::size_t i = text.size() / 4; i + 1 < text.size(); ++i)
    if (std::isalnum(static_cast<unsigned char>(text[i])) != 0
        && std::isalnum(static_cast<unsigned char>(text[i + 1])) != 0)
      return text.substr(i, 2);
  FAIL("no letters in \"" << text << '"');
  return "";
}

} // namespace millrace::test
