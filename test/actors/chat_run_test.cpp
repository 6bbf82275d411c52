// Training a chat model: its template is around every prompt.

#include "actors/opened_model.hpp"
#include "actors/training_run.hpp"
#include "rollout/engine.hpp"
#include "runtime/atomic_file.hpp"
#include "runtime/error.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/scratch_folder.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <fstream>

using namespace millrace;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// A small model with a byte-pair tokenizer and this chat template.
void write_model(const fs::path& folder, const std::string& chat, std::int64_t positions) {
  std::ifstream in(std::string(MILLRACE_GOLDEN_DIR) + "/tokenizers.json");
  const auto golden = json::parse(in);
  for (const auto& c : golden["cases"])
    if (c["name"] == "qwen2")
      write_file_atomically(folder / "tokenizer.json", c["tokenizer"].dump());
  write_file_atomically(folder / "tokenizer_config.json",
                        json{{"eos_token", "<|im_end|>"}, {"chat_template", chat}}.dump());
  const std::shared_ptr<const model::tokenizer> tokens = model::load_tokenizer(folder);
  model::model_config c;
  c.vocab_size = tokens->vocabulary_size();
  c.hidden_size = 32;
  c.intermediate_size = 48;
  c.num_hidden_layers = 1;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 8;
  c.max_position_embeddings = positions;
  const auto e = generation::make_engine({.max_batch = 1}, c, tokens);
  model::initialise(c, e->staging(), 1);
  model::save_checkpoint(folder, c, e->staging());
}

settings of(const fs::path& folder) {
  settings s;
  s.seed = 5;
  s.run.steps = 2;
  s.run.checkpoint_every = 2;
  s.model.path = folder.string();
  s.data.held_out = 8;
  s.data.arithmetic.max_operand = 9;
  s.rollout = {.eta = 1, .batch_size = 8, .group_size = 4, .max_concurrent = 16};
  s.sampling.max_tokens = 6;
  s.generator.max_batch = 16;
  s.eval.prompts = 8;
  s.log.level = log_level::error;
  return s;
}

} // namespace

TEST_CASE("a chat model is trained on its template's text, unless that is turned off") {
  const scratch_folder folder("millrace-chat");
  const std::string around = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                             "<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
  write_model(folder.path(), around, 256);
  auto s = of(folder.path());
  run_training({.options = s, .directory = folder.path() / "run", .quiet = true});
  std::ifstream in(folder.path() / "run" / "summary.json");
  const auto summary = json::parse(in);
  INFO(summary.dump());
  REQUIRE(summary["steps"] == 2);
  REQUIRE(summary["rollouts"]["trained"] == 16);
  // What is saved has the template again.
  std::ifstream latest(folder.path() / "run" / "checkpoints" / "latest");
  std::string name;
  REQUIRE(std::getline(latest, name));
  const auto saved = folder.path() / "run" / "checkpoints" / name / "model";
  REQUIRE(model::load_tokenizer(saved)->chat().text == around);
  REQUIRE(open_model({.model = folder.path() / "run", .threads = 1}).folder == saved);
  // It answers only with what its checkpoint's manifest proves.
  std::ofstream(saved / "config.json", std::ios::app) << "\n";
  try {
    open_model({.model = saved.parent_path(), .threads = 1});
    FAIL("a damaged checkpoint was opened");
  } catch (const user_error& e) {
    REQUIRE(std::string(e.what()).find("config.json has ") != std::string::npos);
  }

  // With a template that fills the context no prompt fits; without it all do.
  std::string much = "<|im_start|>";
  for (int i = 0; i < 40; ++i)
    much += " " + std::to_string(i);
  write_model(folder.path(), much + around, 64);
  try {
    run_training({.options = s, .directory = folder.path() / "long", .quiet = true});
    FAIL("the template wasn't used");
  } catch (const user_error& e) {
    REQUIRE(std::string(e.what()).find("leaves room for an answer") != std::string::npos);
  }
  s.data.chat_template = chat_use::none;
  s.run.steps = 1;
  run_training({.options = s, .directory = folder.path() / "plain", .quiet = true});
}
