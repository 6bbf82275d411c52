// A policy's checkpoints: what is copied, written and filled again.

#include "trainer/policy_snapshot.hpp"

#include "runtime/error.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/safetensors.hpp"
#include "runtime/model/tensor_parallel.hpp"
#include "runtime/model/weight_transfer.hpp"
#include "trainer/full_device.hpp"
#include "trainer/policy_parts.hpp"
#include "trainer/starting_model.hpp"
#include "trainer/tensor_memory.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <fstream>

namespace fs = std::filesystem;

namespace millrace::trainer {

namespace {

constexpr auto model_folder = "model";
constexpr auto tensors_file = "optimizer.safetensors";
constexpr auto state_file = "trainer.json";

std::vector<tensor_view> prefixed(std::vector<tensor_view> views, const std::string& prefix) {
  for (auto& v : views)
    v.name = prefix + v.name;
  return views;
}

} // namespace

// -- what there is to save ----------------------------------------------------------------------------

std::vector<tensor_view> policy::parts::training_tensors() const {
  if (reinforce)
    return prefixed(reinforce->tensors(), "step/");
  if (warm_up)
    return prefixed(warm_up->optimizer().state(), "warm_up/");
  return {};
}

std::vector<tensor_view> policy::parts::own_tensors() const {
  auto moments = optimizer() ? optimizer()->own_state() : std::vector<tensor_view>{};
  if (!reinforce)
    return prefixed(std::move(moments), "warm_up/");
  if (mesh->data_index() == 0)
    for (auto& v : reinforce->other_tensors())
      moments.push_back(std::move(v));
  return prefixed(std::move(moments), "step/");
}

nlohmann::json policy::parts::state() const {
  nlohmann::json j{{"version", at.value}, {"warm_up_steps", warm_up_steps}};
  if (reinforce)
    j["step"] = reinforce->state();
  else if (warm_up)
    j["warm_up"] = {{"updates", warm_up->optimizer().updates()}};
  return j;
}

std::optional<shard_plan> policy::parts::shards() const {
  const auto& p = s.trainer.parallel;
  if (!mesh || !p.sharded_checkpoints)
    return std::nullopt;
  return shard_plan{mesh->grid, p.zero1};
}

std::vector<tensor_view>
policy::parts::collected_tensors(std::vector<at::Tensor>& memory) const {
  if (auto* o = optimizer(); o && mesh)
    o->gather_state();
  auto views = training_tensors();
  if (!mesh || mesh->grid.tp == 1)
    return views;
  if (mesh->data_index() != 0)
    return {};
  at::NoGradGuard no_grad;
  for (auto& v : views) {
    auto own = model::tensor_of(v);
    auto shape = v.shape;
    auto slice = model::slice_of(network.whole_config(), v.name, 0, mesh->grid.tp);
    if (slice.dimension >= 0)
      shape[static_cast<std::size_t>(slice.dimension)] = whole_size(v.name, slice.dimension);
    auto all = mesh->rank == 0 ? at::empty(shape, at::kFloat) : at::Tensor(); // on the host
    gather(v.name, own, all);
    if (mesh->rank == 0) {
      v = view_of(v.name, all);
      memory.push_back(std::move(all));
    }
  }
  return views;
}

void policy::parts::keep_state() const {
  if (auto* o = optimizer(); o && mesh)
    o->scatter_state();
  if (mesh)
    mesh->agree_on_results();
}

// -- saving --------------------------------------------------------------------------------------------

struct policy_snapshot::parts {
  version at;
  model::model_config config;
  const model::tokenizer* tokens = nullptr;
  copied_tensors model, training;
  nlohmann::json state;
  std::optional<shard_plan> shards;
  fs::path others;                   ///< where the other ranks put theirs
  std::function<std::string()> lost; ///< how one of them died
  double timeout_s = 0;
};

policy_snapshot policy::snapshot(const fs::path& shards) const {
  const auto& p = *parts_;
  auto s = std::make_shared<policy_snapshot::parts>();
  s->state = p.state();
  if (auto plan = p.shards(); plan && !shards.empty()) {
    p.lead("shard", shards.string());
    s->training = copy_of(p.own_tensors());
    s->shards = plan;
    s->others = shards;
    s->state["shards"] = plan->to_json();
    s->timeout_s = p.s.trainer.parallel.timeout_s;
    s->lost = [mesh = std::weak_ptr(p.mesh)] {
      auto alive = mesh.lock();
      if (!alive)
        return std::string("training has ended");
      return alive->processes() ? alive->processes()->ended() : std::string();
    };
  } else {
    p.lead("collect");
    within_trainer_memory(p.s, [&] {
      std::vector<at::Tensor> put_together;
      s->training = copy_of(p.collected_tensors(put_together));
      p.keep_state();
    });
  }
  s->model = copy_of(views());
  s->at = p.at;
  s->config = config();
  s->tokens = p.tokens.get();
  return policy_snapshot(std::move(s));
}

bool policy::shards_checkpoints() const { return parts_->shards().has_value(); }

version policy_snapshot::at() const { return parts_->at; }
std::size_t policy_snapshot::bytes() const {
  return parts_->model.memory.size() + parts_->training.memory.size();
}

void policy_snapshot::write(const fs::path& folder) const {
  const auto& p = *parts_;
  fs::create_directories(folder / model_folder);
  model::save_checkpoint(folder / model_folder, p.config, p.model.views, p.tokens);
  if (p.shards || !p.training.views.empty())
    model::write_safetensors(folder / (p.shards ? p.shards->file(0) : tensors_file),
                             p.training.views);
  if (p.shards)
    gather_shards(*p.shards, p.others, folder, p.lost, p.timeout_s);
  model::write_file_atomically(folder / state_file, p.state.dump(1) + "\n");
}

void policy::save(const fs::path& folder) const { snapshot(folder).write(folder); }

// -- going on from it ---------------------------------------------------------------------------------

void policy::parts::restore(const nlohmann::json& state) {
  at = {state.at("version").get<std::int32_t>()};
  warm_up_steps = state.at("warm_up_steps").get<std::int64_t>();
  if (state.contains("step"))
    begin_reinforcement();
  else if (state.contains("warm_up"))
    begin_warm_up();
}

void policy::parts::restore_rest(const nlohmann::json& state) {
  if (reinforce)
    reinforce->restore(state.at("step"));
  if (warm_up) {
    warm_up->set_steps(warm_up_steps);
    warm_up->optimizer().set_updates(state.at("warm_up").at("updates").get<std::int64_t>());
  }
}

void policy::parts::fill_tensors(
  const std::function<const std::byte*(const tensor_view&)>& file) const {
  if (auto* o = optimizer(); o && mesh)
    o->gather_state();
  for (const auto& into : training_tensors()) {
    auto own = model::tensor_of(into);
    if (!mesh) {
      copy_in(into, file(into));
      continue;
    }
    auto view = into;
    auto slice = model::slice_of(network.whole_config(), into.name, 0, mesh->grid.tp);
    if (slice.dimension >= 0)
      view.shape[static_cast<std::size_t>(slice.dimension)] = whole_size(into.name, slice.dimension);
    at::Tensor all;
    if (mesh->rank == 0) {
      all = at::empty(view.shape, at::kFloat); // hand_out() takes it to the device
      std::memcpy(all.data_ptr(), file(view), view.bytes());
    }
    hand_out(into.name, all, own);
  }
  keep_state();
}

namespace {

/// Whole training tensors of a checkpoint, whoever wrote it.
class saved_tensors {
public:
  saved_tensors(fs::path folder, const nlohmann::json& state, const model::model_config& config)
      : folder_(std::move(folder)) {
    if (state.contains("shards"))
      shards_.emplace(folder_, shard_plan::from_json(state.at("shards")), config);
  }

  const std::byte* operator()(const tensor_view& into) {
    if (const auto* found = shards_ ? shards_->find(into) : in_one_file(into))
      return found;
    throw user_error((folder_ / tensors_file).string() + " has no tensor " + into.name
                     + " of the right shape: were algorithm.old_logits or algorithm.kl changed "
                       "since it was written?");
  }

private:
  const std::byte* in_one_file(const tensor_view& into) {
    if (!file_)
      file_.emplace(folder_ / tensors_file);
    auto found = file_->tensors().find(into.name);
    return found != file_->tensors().end() && found->second.shape == into.shape
               && found->second.type == into.type
             ? found->second.data
             : nullptr;
  }

  fs::path folder_;
  std::optional<shard_reader> shards_;
  std::optional<model::safetensors_file> file_;
};

} // namespace

policy policy::load(const settings& s, const fs::path& folder, const registries* known,
                    std::shared_ptr<rank_mesh> mesh) {
  auto path = folder / state_file;
  std::ifstream in(path);
  auto state = nlohmann::json::parse(in, nullptr, false);
  if (!state.is_object())
    throw user_error((in ? path.string() + " is not valid JSON" : "cannot read " + path.string())
                     + ": this is no checkpoint that training can go on from");
  prepare_process(s);
  auto loaded = model_from_folder(s, folder / model_folder, "checkpoint");
  auto config = loaded.network.config();
  auto ranks = with_ranks(s, std::move(mesh), config);
  std::unique_ptr<parts> p;
  try {
    within_trainer_memory(s, [&] {
      p = std::make_unique<parts>(s, known, std::move(ranks), std::move(loaded));
      p->lead("restore", state.dump());
      p->restore(state);
      saved_tensors saved(folder, state, config);
      p->fill_tensors(std::ref(saved));
      p->restore_rest(state);
    });
  } catch (const nlohmann::json::exception& e) {
    throw user_error(path.string() + " can't be understood: " + e.what());
  }
  return policy(std::move(p));
}

} // namespace millrace::trainer
