// The examples of conf/plugins/, each through what the runtime puts around it.

#include "rollout/environment.hpp"
#include "rollout/generator_plugins.hpp"
#include "rollout/plugin_reward.hpp"
#include "rollout/plugin_source.hpp"
#include "runtime/error.hpp"
#include "runtime/plugins/json_parameters.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

using namespace millrace;
using Catch::Matchers::Contains;

namespace {

plugins::loaded_plugin example(const std::string& name) {
  return plugins::load(PLUGINS "/lib" + name + ".so");
}

model::model_config tiny_model(std::int64_t vocabulary) {
  model::model_config c;
  c.vocab_size = vocabulary;
  c.hidden_size = 8;
  c.intermediate_size = 8;
  c.num_hidden_layers = 1;
  c.num_attention_heads = c.num_key_value_heads = 1;
  c.head_dim = 8;
  c.max_position_embeddings = 64;
  c.tie_word_embeddings = true;
  return c;
}

/// Writes the same script of text for every sequence, turn by turn.
class scripted_engine final : public generation::engine {
public:
  scripted_engine(std::shared_ptr<const model::tokenizer> t, std::vector<std::string> script)
    : tokens_(std::move(t)), script_(std::move(script)) {}
  void submit(generation_task t) override { held_.push_back(std::move(t)); }
  bool cancel(rollout_id id) override {
    return std::erase_if(held_, [&](const auto& t) { return t.so_far.id == id; }) > 0;
  }
  std::vector<rollout> step() override {
    std::vector<rollout> out;
    for (auto& t : std::exchange(held_, {})) {
      auto& r = t.so_far;
      std::size_t turns = 0; // of the environment
      for (auto i = static_cast<std::size_t>(r.prompt_length); i + 1 < r.versions.size(); ++i)
        turns += r.versions[i] >= 0 && r.versions[i + 1] < 0;
      auto ids = tokens_->encode(script_.at(turns));
      ids.push_back(tokens_->stop_tokens().at(0));
      for (auto id : ids) {
        r.tokens.push_back(id);
        r.behaviour_logp.push_back(-1);
        r.versions.push_back(3);
      }
      r.finish = finish_reason::stop;
      out.push_back(std::move(r));
    }
    return out;
  }
  std::vector<rollout> drain() override { return {}; }
  [[nodiscard]] std::vector<rollout> partials() const override { return {}; }
  [[nodiscard]] std::size_t running() const override { return held_.size(); }
  [[nodiscard]] std::size_t waiting() const override { return 0; }
  [[nodiscard]] std::int64_t outstanding_tokens() const override { return 0; }
  [[nodiscard]] std::vector<tensor_view> staging() override { return {}; }
  void prepare() override {}
  swap_report install(version) override { return {}; }
  [[nodiscard]] version current() const override { return {3}; }
  [[nodiscard]] generation::engine_statistics statistics() const override { return {}; }

private:
  std::shared_ptr<const model::tokenizer> tokens_;
  std::vector<std::string> script_;
  std::vector<generation_task> held_;
};

class one_prompt final : public prompt_source {
public:
  [[nodiscard]] prompt at(std::int64_t position) const override { return {position, "17+4*2?", "25"}; }
  [[nodiscard]] std::int64_t epoch_size() const override { return 1; }
  [[nodiscard]] prompt held_out(std::int64_t) const override { return {}; }
  [[nodiscard]] std::int64_t held_out_size() const override { return 0; }
  [[nodiscard]] std::string fingerprint() const override { return "one"; }
};

rollout converse(const std::vector<std::string>& script, std::int32_t max_tokens = 60) {
  static const auto plugin = example("environment");
  std::shared_ptr<const model::tokenizer> tokens = model::make_character_tokenizer();
  auto engine = generation::with_environment(
    std::make_unique<scripted_engine>(tokens, script), plugin.environments.at("calculator"),
    {{"calls", 2}}, tokens, std::make_shared<one_prompt>(), 1000);
  rollout r;
  r.id = {1, 0};
  r.tokens = tokens->encode("17+4*2?");
  r.prompt_length = static_cast<std::int32_t>(r.tokens.size());
  r.behaviour_logp.resize(r.tokens.size());
  r.versions.assign(r.tokens.size(), -1);
  engine->submit({r, {.max_tokens = max_tokens}});
  for (int i = 0; i < 10000; ++i) {
    auto done = engine->step();
    if (!done.empty()) {
      REQUIRE(engine->running() == 0);
      return done.at(0);
    }
    REQUIRE(engine->running() == 1);
  }
  FAIL("the conversation does not end");
  return {};
}

} // namespace

TEST_CASE("example: reward") {
  add_plugin_rewards(example("reward"));
  auto judge = make_reward("brief", {{"free", 4}, {"per_byte", 0.25}});
  REQUIRE(judge->judge({1, "", "12"}, "12", finish_reason::stop).reward == 1);
  REQUIRE(judge->judge({1, "", "12"}, "it: 12", finish_reason::stop).reward == 0.5F);
  REQUIRE(!judge->judge({1, "", "12"}, "12", finish_reason::length).correct);
  REQUIRE_THROWS_WITH(make_reward("brief", {{"per_byte", -1}}),
                      Contains("reward.params.per_byte: found -1, expected 0 or more"));
  REQUIRE_THROWS_WITH(make_reward("brief", {{"per_bite", 1}}), Contains("did you mean \"per_byte\""));
  REQUIRE_THROWS_WITH(make_reward("brieff"), Contains("did you mean \"brief\""));
}

TEST_CASE("example: prompt source, shuffled anew each epoch, each prompt once") {
  add_plugin_sources(example("prompts"));
  data_settings data;
  data.source = "backwards";
  data.params = {{"letters", 4}};
  auto source = make_prompt_source(data, 3), again = make_prompt_source(data, 3);
  REQUIRE(source->epoch_size() == 10000);
  std::multiset<std::string> first, second;
  bool same_order = true;
  for (std::int64_t i = 0; i < source->epoch_size(); ++i) {
    const auto a = source->at(i), b = source->at(i + source->epoch_size());
    REQUIRE(a.id == i);
    REQUIRE(a.text == again->at(i).text);
    REQUIRE(std::string(a.answer.rbegin(), a.answer.rend()) + ">" == a.text);
    first.insert(a.text);
    second.insert(b.text);
    same_order = same_order && a.text == b.text;
  }
  REQUIRE(first == second);
  REQUIRE(!same_order);
  REQUIRE(source->held_out(0).id == prompt_source::held_out_ids);
  REQUIRE(source->fingerprint() == "backwards 4 letters, seed 3 shuffled seed 3");
  data.params = {{"letters", 40}};
  REQUIRE_THROWS_WITH(make_prompt_source(data, 3), Contains("data.params.letters: found 40"));
}

TEST_CASE("example: environment; the conversation is one rollout, its words are not trained on") {
  const auto r = converse({"calc 4*2", "calc 17+8", "25"});
  const auto v = verdict_of(r.text);
  INFO(r.text);
  REQUIRE(v.failure.empty());
  REQUIRE(v.correct);
  REQUIRE(v.detail == "2 calls");
  const auto turns = nlohmann::json::parse(r.text)["turns"];
  REQUIRE(turns.size() == 5);
  REQUIRE(turns[1]["text"] == "=8\n");
  REQUIRE(turns[3]["text"] == "=25\n");
  REQUIRE(r.tokens.size() == r.versions.size());
  REQUIRE(r.tokens.size() == r.behaviour_logp.size());
  // "=8\n" and "=25\n" carry no version.
  REQUIRE(std::count(r.versions.begin() + r.prompt_length, r.versions.end(), -1) == 3 + 4);
  REQUIRE(r.finish == finish_reason::stop);
}

TEST_CASE("example: environment; wrong, beyond its calls, and out of room") {
  REQUIRE(!verdict_of(converse({"24"}).text).correct);
  REQUIRE(!verdict_of(converse({"calc 1+1", "calc 1+1", "calc 1+1"}).text).correct);
  const auto r = converse({"calc 4*2", "25"}, 12);
  REQUIRE(r.finish == finish_reason::length);
  REQUIRE(!verdict_of(r.text).correct);
  REQUIRE_THAT(verdict_of("plain text").failure, Contains("no conversation"));
}

TEST_CASE("example: sampler; the log-probs are those of what is sampled from") {
  const auto p = example("sampler");
  auto by = plugins::make(p.samplers.at("epsilon"), {{"epsilon", 0.1}}, "x");
  const std::vector<float> logits{2, 1, 0, -3};
  std::map<std::int32_t, int> drawn;
  constexpr int n = 20000;
  double mass = 0;
  std::map<std::int32_t, float> logp;
  for (int i = 0; i < n; ++i) {
    auto copy = logits;
    const auto t = by->sample(copy, {}, (i + 0.5) / n, {});
    ++drawn[t.token];
    logp[t.token] = t.logp;
  }
  for (const auto& [token, times] : drawn) {
    REQUIRE(double(times) / n == Approx(std::exp(logp[token])).margin(0.001));
    mass += std::exp(logp[token]);
  }
  REQUIRE(mass == Approx(1).margin(1e-5));
  REQUIRE(!drawn.contains(2)); // 0.089 of the whole
  const std::int32_t banned[] = {0};
  for (int i = 0; i < 100; ++i) {
    auto copy = logits;
    REQUIRE(by->sample(copy, {}, i / 100.0, banned).token != 0);
  }
}

TEST_CASE("example: generator back end under weights that change") {
  generation::add_plugin_generators(example("generator"));
  settings s;
  s.generator.backend.name = "bigram";
  const auto config = tiny_model(5);
  double now = 0;
  generation::engine_options o{.max_batch = 2, .stop_tokens = {4}};
  o.clock = [&] { return now += 1; };
  auto engine = generation::make_engine(s, o, config, nullptr, nullptr);
  const auto fill = [&](float last_to_next) {
    // Each token is one-hot, so that the logits of what follows token t are its row of E·Eᵀ.
    for (const auto& w : engine->staging()) {
      auto* data = reinterpret_cast<float*>(w.data);
      std::fill(data, data + w.elements(), 0.0F);
      if (w.name == "model.embed_tokens.weight")
        for (int t = 0; t < 5; ++t)
          data[t * 8 + t] = last_to_next;
    }
  };
  fill(0); // uniform
  engine->install({0});
  const auto task = [](std::int64_t group, std::int32_t max) {
    rollout r;
    r.id = {group, 0};
    r.prompt_id = group;
    r.tokens = {1, 2};
    r.prompt_length = 2;
    r.behaviour_logp = {0, 0};
    r.versions = {-1, -1};
    return generation_task{r, {.max_tokens = max, .seed = 9}};
  };
  for (std::int64_t g = 0; g < 5; ++g)
    engine->submit(task(g, 20));
  REQUIRE(engine->running() + engine->waiting() == 5);
  std::vector<rollout> done;
  for (int i = 0; i < 3; ++i)
    for (auto& r : engine->step())
      done.push_back(r);
  REQUIRE(engine->running() <= 2);
  fill(30); // from now on every token repeats itself
  REQUIRE(engine->install({1}).running == static_cast<std::int64_t>(engine->running()));
  for (int i = 0; i < 200 && engine->running() + engine->waiting() > 0; ++i)
    for (auto& r : engine->step())
      done.push_back(r);
  REQUIRE(done.size() == 5);
  for (const auto& r : done) {
    REQUIRE(r.tokens.size() == r.versions.size());
    REQUIRE((r.finish == finish_reason::stop) == (r.tokens.back() == 4));
    REQUIRE(r.generated() <= 20);
    for (std::size_t i = 2; i < r.tokens.size(); ++i) {
      REQUIRE(r.versions[i] >= r.versions[i - 1]);
      REQUIRE(r.behaviour_logp[i] == Approx(r.versions[i] == 0 ? std::log(0.2) : 0).margin(1e-4));
      if (r.versions[i] == 1)
        REQUIRE(r.tokens[i] == r.tokens[i - 1]);
    }
  }
  engine->submit(task(9, 20));
  engine->step();
  REQUIRE(engine->drain().at(0).generated() == 1);
  REQUIRE(engine->running() == 0);
  s.generator.backend.name = "trigram";
  REQUIRE_THROWS_WITH(generation::check_plugin_names(s.generator),
                      Contains("generator.backend.name") && Contains("bigram"));
}
