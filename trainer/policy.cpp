#include "trainer/policy.hpp"

#include "policy_loss/checks.hpp"
#include "runtime/error.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/safetensors.hpp"
#include "runtime/model/transformer.hpp"
#include "trainer/supervised.hpp"
#include "trainer/train_step.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

namespace fs = std::filesystem;

namespace millrace::trainer {

namespace {

constexpr auto model_folder = "model";
constexpr auto tensors_file = "optimizer.safetensors";
constexpr auto state_file = "trainer.json";

model::model_config config_from(const settings& s, const model::tokenizer& tokens) {
  const auto& a = s.model.architecture;
  model::model_config c;
  c.vocab_size = tokens.vocabulary_size();
  c.hidden_size = a.hidden;
  c.intermediate_size = a.intermediate;
  c.num_hidden_layers = a.layers;
  c.num_attention_heads = a.heads;
  c.num_key_value_heads = a.kv_heads;
  c.head_dim = a.hidden / a.heads;
  c.max_position_embeddings = a.max_positions;
  c.rms_norm_eps = a.norm_eps;
  c.rope_theta = a.rope_theta;
  c.tie_word_embeddings = a.tie_embeddings;
  c.eos_token_ids = tokens.stop_tokens();
  c.bos_token_id = tokens.bos();
  c.pad_token_id = tokens.pad();
  c.validate("model.architecture");
  return c;
}

model::loaded_model from_folder(const settings& s, const fs::path& folder,
                                const std::string& where) {
  auto loaded = model::load_model(folder);
  if (!loaded.tokens)
    throw user_error(where + ": " + folder.string() + " has no tokenizer.json");
  if (loaded.tokens->vocabulary_size() > loaded.network.config().vocab_size)
    throw user_error(where + ": the tokenizer in " + folder.string() + " has "
                     + std::to_string(loaded.tokens->vocabulary_size())
                     + " tokens, the model's vocabulary only "
                     + std::to_string(loaded.network.config().vocab_size));
  if (s.data.chat_template == chat_use::automatic)
    loaded.tokens->use_chat();
  return loaded;
}

model::loaded_model made(const settings& s) {
  if (!s.model.path.empty())
    return from_folder(s, s.model.path, "model.path");
  auto tokens = model::make_character_tokenizer({.alphabet = s.tokenizer.alphabet});
  model::transformer network(config_from(s, *tokens));
  network.initialise(s.seed);
  return {std::move(network), std::move(tokens)};
}

/// The rate grows over the first tenth of the warm-up, twenty steps at most, and stays.
supervised_options warm_up_options(const settings& s) {
  supervised_options o;
  o.learning_rate.peak = s.warmup.lr;
  o.learning_rate.warmup_steps = std::min(20, s.warmup.steps / 10);
  o.optimizer = {s.trainer.beta1, s.trainer.beta2, s.trainer.eps, s.trainer.weight_decay,
                 s.trainer.grad_clip};
  o.micro_batch_tokens = s.trainer.micro_batch_tokens;
  o.packing = s.trainer.packing;
  return o;
}

std::vector<tensor_view> prefixed(std::vector<tensor_view> views, const std::string& prefix) {
  for (auto& v : views)
    v.name = prefix + v.name;
  return views;
}

} // namespace

std::vector<std::string> check_algorithm(const settings& s, const registries* known) {
  check_names(s, known ? *known : registries{});
  std::vector<std::string> remarks;
  std::string refused;
  for (const auto& f : policy_loss::check(policy_loss::facts_of(s)))
    if (f.level == policy_loss::severity::refuse)
      refused += (refused.empty() ? "" : "\n") + policy_loss::to_string(f);
    else
      remarks.push_back(policy_loss::to_string(f));
  if (!refused.empty())
    throw user_error(refused);
  return remarks;
}

struct policy::parts {
  settings s;
  registries known;
  model::transformer network;
  std::unique_ptr<model::tokenizer> tokens;
  std::unique_ptr<supervised> warm_up;         ///< until the first step()
  std::unique_ptr<reinforcement> reinforce; ///< from the first step() on
  std::int64_t warm_up_steps = 0;
  version at{0};
  std::vector<std::string> remarks;

  parts(const settings& given, const registries* extra, model::loaded_model loaded)
      : s(given), known(extra ? *extra : registries{}), network(std::move(loaded.network)),
        tokens(std::move(loaded.tokens)), remarks(check_algorithm(given, extra)) {
    enter();
    // Settings that don't fit together are told now, not after the warm-up.
    reinforcement(network, s, known);
  }

  void enter() const {
    at::set_num_threads(s.trainer.threads);
    if (s.deterministic)
      at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }

  void begin_warm_up() {
    ensure(!reinforce, "a warm-up step after reinforcement learning began");
    if (!warm_up)
      warm_up = std::make_unique<supervised>(network, warm_up_options(s));
  }

  void begin_reinforcement() {
    if (reinforce)
      return;
    warm_up.reset();
    reinforce = std::make_unique<reinforcement>(network, s, known);
  }

  [[nodiscard]] std::vector<tensor_view> training_tensors() const {
    if (reinforce)
      return prefixed(reinforce->tensors(), "step/");
    if (warm_up)
      return prefixed(warm_up->optimizer().state(), "warm_up/");
    return {};
  }
};

policy::policy(std::unique_ptr<parts> p) : parts_(std::move(p)) {}
policy::policy(policy&&) noexcept = default;
policy& policy::operator=(policy&&) noexcept = default;
policy::~policy() = default;

policy policy::create(const settings& s, const registries* known) {
  return policy(std::make_unique<parts>(s, known, made(s)));
}

supervised_statistics policy::warm_up(std::span<const demonstration> batch) {
  parts_->enter();
  parts_->begin_warm_up();
  auto result = parts_->warm_up->step(batch);
  parts_->warm_up_steps = parts_->warm_up->steps();
  return result;
}

step_statistics policy::step(version from, std::span<const scored_group> groups,
                             const old_logit_supply& supply) {
  ensure(from == parts_->at, [&] {
    return "a step from " + to_string(from) + " was asked of the policy at "
           + to_string(parts_->at);
  });
  parts_->enter();
  parts_->begin_reinforcement();
  auto result = parts_->reinforce->step(from, groups, supply);
  parts_->at = from.next();
  return result;
}

std::shared_ptr<old_logit_worker> policy::old_logit_helper() {
  if (parts_->s.algorithm.old_logits != old_logits_source::dedicated)
    return nullptr;
  parts_->enter();
  parts_->begin_reinforcement();
  return parts_->reinforce->old_logit_helper(parts_->at);
}

std::vector<std::string> policy::remarks() const { return parts_->remarks; }
version policy::current() const { return parts_->at; }
std::int64_t policy::warm_up_steps() const { return parts_->warm_up_steps; }
std::vector<tensor_view> policy::views() const { return parts_->network.views(); }
const model::model_config& policy::config() const { return parts_->network.config(); }
const model::tokenizer& policy::tokenizer() const { return *parts_->tokens; }

void policy::save_model(const fs::path& folder) const {
  fs::create_directories(folder);
  model::save_checkpoint(folder, config(), views(), parts_->tokens.get());
}

void policy::save(const fs::path& folder) const {
  const auto& p = *parts_;
  save_model(folder / model_folder);
  auto tensors = p.training_tensors();
  if (!tensors.empty())
    model::write_safetensors(folder / tensors_file, tensors);
  nlohmann::json state{{"version", p.at.value}, {"warm_up_steps", p.warm_up_steps}};
  if (p.reinforce)
    state["step"] = p.reinforce->state();
  else if (p.warm_up)
    state["warm_up"] = {{"updates", p.warm_up->optimizer().updates()}};
  model::write_file_atomically(folder / state_file, state.dump(1) + "\n");
}

policy policy::load(const settings& s, const fs::path& folder, const registries* known) {
  auto path = folder / state_file;
  std::ifstream in(path);
  auto state = nlohmann::json::parse(in, nullptr, false);
  if (!state.is_object())
    throw user_error((in ? path.string() + " is not valid JSON" : "cannot read " + path.string())
                     + ": this is no checkpoint that training can go on from");
  auto p = std::make_unique<parts>(s, known, from_folder(s, folder / model_folder, "checkpoint"));
  try {
    p->at = {state.at("version").get<std::int32_t>()};
    p->warm_up_steps = state.at("warm_up_steps").get<std::int64_t>();
    if (state.contains("step"))
      p->begin_reinforcement();
    else if (state.contains("warm_up"))
      p->begin_warm_up();
    auto tensors = p->training_tensors();
    if (!tensors.empty()) {
      model::safetensors_file file(folder / tensors_file);
      for (const auto& into : tensors) {
        auto found = file.tensors().find(into.name);
        if (found == file.tensors().end() || found->second.shape != into.shape
            || found->second.type != into.type)
          throw user_error((folder / tensors_file).string() + " has no tensor " + into.name
                           + " of the right shape: were algorithm.old_logits or algorithm.kl "
                             "changed since it was written?");
        std::copy_n(found->second.data, into.bytes(), into.data);
      }
    }
    if (p->reinforce)
      p->reinforce->restore(state.at("step"));
    if (p->warm_up) {
      p->warm_up->set_steps(p->warm_up_steps);
      p->warm_up->optimizer().set_updates(state.at("warm_up").at("updates").get<std::int64_t>());
    }
  } catch (const nlohmann::json::exception& e) {
    throw user_error(path.string() + " can't be understood: " + e.what());
  }
  return policy(std::move(p));
}

} // namespace millrace::trainer
