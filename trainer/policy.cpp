#include "trainer/policy.hpp"

#include "policy_loss/checks.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/safetensors.hpp"
#include "runtime/model/tensor_parallel.hpp"
#include "runtime/model/transformer.hpp"
#include "trainer/collectives.hpp"
#include "trainer/parallel.hpp"
#include "trainer/step_batch.hpp"
#include "trainer/supervised.hpp"
#include "trainer/tensor_memory.hpp"
#include "trainer/train_step.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>

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
  o.zero1 = s.trainer.parallel.zero1;
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
  std::shared_ptr<rank_mesh> mesh; ///< null: one process
  model::transformer network;      ///< this rank's part of the model
  std::optional<model::transformer> whole; ///< rank 0, where tp is above 1: all of it
  std::unique_ptr<model::tokenizer> tokens;
  std::unique_ptr<supervised> warm_up;         ///< until the first step()
  std::unique_ptr<reinforcement> reinforce; ///< from the first step() on
  std::int64_t warm_up_steps = 0;
  version at{0};
  std::vector<std::string> remarks;

  parts(const settings& given, const registries* extra, std::shared_ptr<rank_mesh> ranks,
        model::loaded_model loaded)
      : s(given), known(extra ? *extra : registries{}), mesh(std::move(ranks)),
        network(part_of(loaded.network, mesh.get())), tokens(std::move(loaded.tokens)),
        remarks(check_algorithm(given, extra)) {
    enter();
    if (mesh && mesh->rank == 0 && mesh->grid.tp > 1)
      whole = std::move(loaded.network);
    network.recompute_activations(s.trainer.activation_checkpointing);
    spread_model();
    // Settings that don't fit together are told now, not after the warm-up.
    reinforcement(network, s, known, mesh.get());
  }

  /// The whole model, or a rank's part, whose values come later.
  static model::transformer part_of(model::transformer& all, rank_mesh* mesh) {
    if (mesh && mesh->grid.tp > 1)
      return model::transformer(all.config(), {}, mesh->tensor_group());
    return std::move(all);
  }

  /// Makes the other ranks do what this one is about to.
  void lead(const std::string& what, const std::string& content = {}) const {
    if (mesh && mesh->rank == 0)
      mesh->post(what, content);
  }

  /// From rank 0's whole tensor to every rank's part.
  void hand_out(const std::string& name, at::Tensor whole_value, at::Tensor own) const {
    auto slice = model::slice_of(network.whole_config(), name, mesh->tensor_index(), mesh->grid.tp);
    if (mesh->rank != 0) {
      auto shape = own.sizes().vec();
      if (slice.dimension >= 0)
        shape[static_cast<std::size_t>(slice.dimension)] = whole_size(name, slice.dimension);
      whole_value = at::empty(shape, own.options());
    }
    whole_value = whole_value.contiguous();
    mesh->world().broadcast(whole_value, 0);
    own.copy_(slice.of(whole_value));
  }

  /// From the parts of rank 0's replica to its whole tensor. Called on all ranks of that replica.
  void gather(const std::string& name, const at::Tensor& own, at::Tensor whole_value) const {
    for (int r = 0; r < mesh->grid.tp; ++r) {
      auto slice = model::slice_of(network.whole_config(), name, r, mesh->grid.tp);
      if (slice.dimension < 0)
        return own_to_whole(own, whole_value);
      auto shape = own.sizes().vec();
      shape[static_cast<std::size_t>(slice.dimension)] = slice.length;
      auto piece = r == mesh->tensor_index() ? own.clone(at::MemoryFormat::Contiguous)
                                             : at::empty(shape, own.options());
      mesh->tensor().broadcast(piece, r);
      if (mesh->rank == 0)
        slice.of(whole_value).copy_(piece);
    }
  }

  void own_to_whole(const at::Tensor& own, at::Tensor whole_value) const {
    if (mesh->rank == 0)
      whole_value.copy_(own);
  }

  [[nodiscard]] std::int64_t whole_size(const std::string& name, int dimension) const {
    std::int64_t size = 0;
    for (int r = 0; r < mesh->grid.tp; ++r) {
      auto slice = model::slice_of(network.whole_config(), name, r, mesh->grid.tp);
      ensure(slice.dimension == dimension, name + " is not split like this");
      size += slice.length;
    }
    return size;
  }

  /// Rank 0's values to all.
  void spread_model() const {
    if (!mesh)
      return;
    at::NoGradGuard no_grad;
    if (mesh->grid.tp == 1) {
      auto flat = network.flat().detach();
      mesh->world().broadcast(flat, 0);
      return;
    }
    for (std::size_t i = 0; i < network.parameters().size(); ++i) {
      const auto& p = network.parameters()[i];
      hand_out(p.name, whole ? whole->parameters()[i].value.detach() : at::Tensor(),
               p.value.detach());
    }
  }

  /// Rank 0's whole model follows its replica.
  void collect_model() {
    if (!mesh || mesh->grid.tp == 1 || mesh->data_index() != 0)
      return;
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < network.parameters().size(); ++i) {
      const auto& p = network.parameters()[i];
      gather(p.name, p.value.detach(), whole ? whole->parameters()[i].value.detach() : at::Tensor());
    }
  }

  [[nodiscard]] const model::transformer& published() const { return whole ? *whole : network; }

  [[nodiscard]] adamw* optimizer() const {
    return reinforce ? &reinforce->optimizer() : warm_up ? &warm_up->optimizer() : nullptr;
  }

  /// Training tensors as they go into a checkpoint: whole ones, on rank 0. `memory` holds those that
  /// were put together from parts.
  std::vector<tensor_view> collected_tensors(std::vector<at::Tensor>& memory) const {
    if (auto* o = optimizer(); o && mesh)
      o->gather_state();
    auto views = training_tensors();
    if (!mesh || mesh->grid.tp == 1)
      return views;
    if (mesh->data_index() != 0)
      return {};
    at::NoGradGuard no_grad;
    for (auto& v : views) {
      auto own = tensor_of_view(v);
      auto shape = v.shape;
      auto slice = model::slice_of(network.whole_config(), v.name, 0, mesh->grid.tp);
      if (slice.dimension >= 0)
        shape[static_cast<std::size_t>(slice.dimension)] = whole_size(v.name, slice.dimension);
      auto all = mesh->rank == 0 ? at::empty(shape, own.options()) : at::Tensor();
      gather(v.name, own, all);
      if (mesh->rank == 0) {
        v = view_of(v.name, all);
        memory.push_back(std::move(all));
      }
    }
    return views;
  }

  /// After the views of training_tensors() were filled on every rank.
  void keep_state() const {
    if (auto* o = optimizer(); o && mesh)
      o->scatter_state();
  }

  static at::Tensor tensor_of_view(const tensor_view& v) {
    return at::from_blob(v.data, v.shape, at::kFloat);
  }

  /// Rank 0 has `file`; every rank fills its training tensors.
  void fill_tensors(const std::function<const std::byte*(const tensor_view&)>& file) const {
    if (auto* o = optimizer(); o && mesh)
      o->gather_state();
    for (const auto& into : training_tensors()) {
      auto own = tensor_of_view(into);
      if (!mesh) {
        std::copy_n(file(into), into.bytes(), into.data);
        continue;
      }
      auto view = into;
      auto slice = model::slice_of(network.whole_config(), into.name, 0, mesh->grid.tp);
      if (slice.dimension >= 0)
        view.shape[static_cast<std::size_t>(slice.dimension)]
          = whole_size(into.name, slice.dimension);
      at::Tensor all;
      if (mesh->rank == 0) {
        all = at::empty(view.shape, own.options());
        std::memcpy(all.data_ptr(), file(view), view.bytes());
      }
      hand_out(into.name, all, own);
    }
    keep_state();
  }

  void restore(const nlohmann::json& state) {
    at = {state.at("version").get<std::int32_t>()};
    warm_up_steps = state.at("warm_up_steps").get<std::int64_t>();
    if (state.contains("step"))
      begin_reinforcement();
    else if (state.contains("warm_up"))
      begin_warm_up();
  }

  void restore_rest(const nlohmann::json& state) {
    if (reinforce)
      reinforce->restore(state.at("step"));
    if (warm_up) {
      warm_up->set_steps(warm_up_steps);
      warm_up->optimizer().set_updates(state.at("warm_up").at("updates").get<std::int64_t>());
    }
  }

  supervised_statistics do_warm_up(std::span<const demonstration> batch) {
    enter();
    begin_warm_up();
    auto result = warm_up->step(batch);
    warm_up_steps = warm_up->steps();
    collect_model();
    return result;
  }

  step_statistics do_step(version from, std::span<const scored_group> groups,
                          const old_logit_supply& supply) {
    enter();
    begin_reinforcement();
    auto result = reinforce->step(from, groups, supply);
    at = from.next();
    collect_model();
    return result;
  }

  void follow();

  void enter() const {
    at::set_num_threads(s.trainer.threads);
    if (s.deterministic)
      at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }

  void begin_warm_up() {
    ensure(!reinforce, "a warm-up step after reinforcement learning began");
    if (!warm_up)
      warm_up = std::make_unique<supervised>(network, warm_up_options(s), mesh.get());
  }

  void begin_reinforcement() {
    if (reinforce)
      return;
    warm_up.reset();
    reinforce = std::make_unique<reinforcement>(network, s, known, mesh.get());
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

namespace {

/// Starts the other ranks, unless they are there, and tells them what model it is.
std::shared_ptr<rank_mesh> with_ranks(const settings& s, std::shared_ptr<rank_mesh> mesh,
                                      const model::model_config& config) {
  if (s.trainer.parallel.tp > 1)
    static_cast<void>(model::local_config(config, 0, s.trainer.parallel.tp)); // told before they start
  if (!mesh)
    mesh = start_ranks(s);
  if (mesh)
    mesh->post("create", nlohmann::json{{"settings", resolved_json(s)},
                                        {"model", model::to_json(config)}}.dump());
  return mesh;
}

} // namespace

policy policy::create(const settings& s, const registries* known, std::shared_ptr<rank_mesh> mesh) {
  static_cast<void>(check_algorithm(s, known));
  auto loaded = made(s);
  auto ranks = with_ranks(s, std::move(mesh), loaded.network.config());
  return policy(std::make_unique<parts>(s, known, std::move(ranks), std::move(loaded)));
}

supervised_statistics policy::warm_up(std::span<const demonstration> batch) {
  if (parts_->mesh)
    parts_->lead("warm_up", to_bytes(batch));
  return parts_->do_warm_up(batch);
}

step_statistics policy::step(version from, std::span<const scored_group> groups,
                             const old_logit_supply& supply) {
  ensure(from == parts_->at, [&] {
    return "a step from " + to_string(from) + " was asked of the policy at "
           + to_string(parts_->at);
  });
  if (parts_->mesh) {
    // What would fail on every rank must not be sent to them.
    step_batch(from, groups, parts_->s);
    parts_->lead("step", to_bytes(groups));
  }
  return parts_->do_step(from, groups, supply);
}

/// What rank 0 posts, done, until it is done with.
void policy::parts::follow() {
  for (;;) {
    auto order = mesh->next();
    if (order.what == "warm_up") {
      do_warm_up(demonstrations_from_bytes(order.content));
    } else if (order.what == "step") {
      auto groups = groups_from_bytes(order.content);
      do_step(at, groups, {});
    } else if (order.what == "collect") {
      std::vector<at::Tensor> memory;
      collected_tensors(memory);
      keep_state();
    } else if (order.what == "restore") {
      auto state = nlohmann::json::parse(order.content);
      restore(state);
      fill_tensors({});
      restore_rest(state);
    } else {
      ensure(order.what == "end", "rank 0 asks for \"" + order.what + "\", which no rank knows");
      return;
    }
  }
}

void follow_rank(int rank, const std::string& endpoint, double timeout_s,
                 const std::function<void(const settings&)>& prepare) {
  auto colon = endpoint.rfind(':');
  auto port = colon == std::string::npos ? 0 : std::atoi(endpoint.c_str() + colon + 1);
  if (port < 1 || port > 65535)
    throw user_error("--store: found \"" + endpoint + "\", expected HOST:PORT");
  auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1000));
  auto mesh = rank_mesh::join(rank, rendezvous::join(endpoint.substr(0, colon),
                                                     static_cast<std::uint16_t>(port), timeout));
  auto order = mesh->next();
  if (order.what == "end")
    return;
  ensure(order.what == "create", "rank 0 begins with \"" + order.what + "\"");
  auto given = nlohmann::json::parse(order.content);
  auto s = parse_settings(given.at("settings").get<std::string>(), "the settings of rank 0");
  if (prepare)
    prepare(s);
  auto config = model::from_json(given.at("model"), "the model of rank 0");
  policy::parts(s, nullptr, mesh, {model::transformer(config), nullptr}).follow();
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
std::vector<tensor_view> policy::views() const { return parts_->published().views(); }
const model::model_config& policy::config() const { return parts_->published().config(); }
const model::tokenizer& policy::tokenizer() const { return *parts_->tokens; }

void policy::save_model(const fs::path& folder) const {
  fs::create_directories(folder);
  model::save_checkpoint(folder, config(), views(), parts_->tokens.get());
}

struct policy_snapshot::parts {
  version at;
  model::model_config config;
  const model::tokenizer* tokens = nullptr;
  std::vector<std::byte> memory; ///< of all tensors
  std::vector<tensor_view> model, training;
  nlohmann::json state;
};

namespace {

/// Views of copies, which lie in `memory` from `at` on.
std::vector<tensor_view> copies(std::vector<tensor_view> views, std::vector<std::byte>& memory,
                                std::size_t& at) {
  for (auto& v : views) {
    std::copy_n(v.data, v.bytes(), memory.data() + at);
    v.data = memory.data() + at;
    at += v.bytes();
  }
  return views;
}

std::size_t bytes_of(const std::vector<tensor_view>& views) {
  std::size_t n = 0;
  for (const auto& v : views)
    n += v.bytes();
  return n;
}

} // namespace

policy_snapshot policy::snapshot() const {
  const auto& p = *parts_;
  auto s = std::make_shared<policy_snapshot::parts>();
  p.lead("collect");
  std::vector<at::Tensor> put_together;
  auto training = p.collected_tensors(put_together);
  auto model = views();
  s->memory.resize(bytes_of(model) + bytes_of(training));
  std::size_t at = 0;
  s->model = copies(std::move(model), s->memory, at);
  s->training = copies(std::move(training), s->memory, at);
  p.keep_state();
  s->at = p.at;
  s->config = config();
  s->tokens = p.tokens.get();
  s->state = {{"version", p.at.value}, {"warm_up_steps", p.warm_up_steps}};
  if (p.reinforce)
    s->state["step"] = p.reinforce->state();
  else if (p.warm_up)
    s->state["warm_up"] = {{"updates", p.warm_up->optimizer().updates()}};
  return policy_snapshot(std::move(s));
}

version policy_snapshot::at() const { return parts_->at; }
std::size_t policy_snapshot::bytes() const { return parts_->memory.size(); }

void policy_snapshot::write(const fs::path& folder) const {
  fs::create_directories(folder / model_folder);
  model::save_checkpoint(folder / model_folder, parts_->config, parts_->model, parts_->tokens);
  if (!parts_->training.empty())
    model::write_safetensors(folder / tensors_file, parts_->training);
  model::write_file_atomically(folder / state_file, parts_->state.dump(1) + "\n");
}

void policy::save(const fs::path& folder) const { snapshot().write(folder); }

policy policy::load(const settings& s, const fs::path& folder, const registries* known,
                    std::shared_ptr<rank_mesh> mesh) {
  auto path = folder / state_file;
  std::ifstream in(path);
  auto state = nlohmann::json::parse(in, nullptr, false);
  if (!state.is_object())
    throw user_error((in ? path.string() + " is not valid JSON" : "cannot read " + path.string())
                     + ": this is no checkpoint that training can go on from");
  auto loaded = from_folder(s, folder / model_folder, "checkpoint");
  auto ranks = with_ranks(s, std::move(mesh), loaded.network.config());
  auto p = std::make_unique<parts>(s, known, std::move(ranks), std::move(loaded));
  try {
    p->lead("restore", state.dump());
    p->restore(state);
    std::optional<model::safetensors_file> file;
    p->fill_tensors([&](const tensor_view& into) {
      if (!file)
        file.emplace(folder / tensors_file);
      auto found = file->tensors().find(into.name);
      if (found == file->tensors().end() || found->second.shape != into.shape
          || found->second.type != into.type)
        throw user_error((folder / tensors_file).string() + " has no tensor " + into.name
                         + " of the right shape: were algorithm.old_logits or algorithm.kl "
                           "changed since it was written?");
      return static_cast<const std::byte*>(found->second.data);
    });
    p->restore_rest(state);
  } catch (const nlohmann::json::exception& e) {
    throw user_error(path.string() + " can't be understood: " + e.what());
  }
  return policy(std::move(p));
}

} // namespace millrace::trainer
