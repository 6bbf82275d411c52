#include "trainer/policy.hpp"

#include "policy_loss/checks.hpp"
#include "runtime/error.hpp"
#include "runtime/metrics/process.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/torch_device.hpp"
#include "trainer/determinism.hpp"
#include "trainer/full_device.hpp"
#include "trainer/policy_parts.hpp"
#include "trainer/starting_model.hpp"
#include "trainer/step_batch.hpp"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace fs = std::filesystem;

namespace millrace::trainer {

namespace {

/// The rate grows over the first tenth of the warm-up, twenty steps at most, and stays.
supervised_options warm_up_options(const settings& s) {
  supervised_options o;
  o.learning_rate.peak = s.warmup.lr;
  o.learning_rate.warmup_steps = std::min(20, s.warmup.steps / 10);
  o.optimizer = optimizer_options(s.trainer);
  o.micro_batch_tokens = s.trainer.micro_batch_tokens;
  o.packing = s.trainer.packing;
  o.zero1 = s.trainer.parallel.zero1;
  return o;
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

policy::parts::parts(const settings& given, const registries* extra,
                     std::shared_ptr<rank_mesh> ranks, model::loaded_model loaded)
    : s(given), known(extra ? *extra : registries{}), mesh(std::move(ranks)),
      network(part_of(loaded.network, mesh.get(), given)), tokens(std::move(loaded.tokens)),
      remarks(check_algorithm(given, extra)) {
  enter();
  if (mesh && mesh->rank == 0 && mesh->grid.tp > 1)
    whole = std::move(loaded.network);
  network.recompute_activations(s.trainer.activation_checkpointing);
  network.compute_in(s.trainer.compute == compute_dtype::bf16 ? at::kBFloat16 : at::kFloat);
  spread_model();
  // Settings that don't fit together are told now, not after the warm-up.
  reinforcement(network, s, known, mesh.get());
}

void prepare_process(const settings& s) {
  if (s.deterministic)
    compute_deterministically();
  // The trainer's own device is opened where it is asked for.
  const auto others = {s.generator.device, s.algorithm.dedicated.device};
  if (std::ranges::count(others, compute_device::cuda) > 0)
    model::prepare_for_cuda();
}

c10::Device trainer_device(const settings& s, const rank_mesh* mesh) {
  return model::torch_device(s.trainer.device, mesh ? mesh->rank : 0, "trainer.device");
}

void policy::parts::enter() const {
  at::set_num_threads(s.trainer.threads);
  if (const auto device = network.device(); device.is_cuda())
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

void policy::parts::begin_warm_up() {
  ensure(!reinforce, "a warm-up step after reinforcement learning began");
  if (!warm_up)
    warm_up = std::make_unique<supervised>(network, warm_up_options(s), mesh.get());
}

void policy::parts::begin_reinforcement() {
  if (reinforce)
    return;
  warm_up.reset();
  reinforce = std::make_unique<reinforcement>(network, s, known, mesh.get());
}

supervised_statistics policy::parts::do_warm_up(std::span<const demonstration> batch) {
  enter();
  auto result = within_trainer_memory(s, [&] {
    begin_warm_up();
    auto done = warm_up->step(batch);
    collect_model();
    return done;
  });
  if (mesh)
    mesh->agree_on_results();
  warm_up_steps = warm_up->steps();
  return result;
}

step_statistics policy::parts::do_step(version from, std::span<const scored_group> groups,
                                       const old_logit_supply& supply) {
  enter();
  auto result = within_trainer_memory(s, [&] {
    begin_reinforcement();
    auto done = reinforce->step(from, groups, supply);
    collect_model();
    return done;
  });
  if (mesh)
    mesh->agree_on_results();
  at = from.next();
  result.peak_rss_bytes = read_process_usage().peak_resident_bytes;
  if (mesh)
    result.peak_rss_bytes = mesh->world().largest(result.peak_rss_bytes);
  return result;
}

std::vector<tensor_view> policy::parts::published_on_host() {
  const std::pair now(at, warm_up_steps);
  if (on_host_of != now)
    on_host.take(published().views());
  on_host_of = now;
  return on_host.views();
}

policy::policy(std::unique_ptr<parts> p) : parts_(std::move(p)) {}
policy::policy(policy&&) noexcept = default;
policy& policy::operator=(policy&&) noexcept = default;
policy::~policy() = default;

policy policy::create(const settings& s, const registries* known, std::shared_ptr<rank_mesh> mesh) {
  static_cast<void>(check_algorithm(s, known));
  prepare_process(s);
  static_cast<void>(trainer_device(s, mesh.get())); // told before anything is loaded
  auto loaded = starting_model(s);
  auto ranks = with_ranks(s, std::move(mesh), loaded.network.config());
  return within_trainer_memory(s, [&] {
    return policy(std::make_unique<parts>(s, known, std::move(ranks), std::move(loaded)));
  });
}

/// work(), where the end of a rank is told by its name if the system knows of it.
template <class Work>
static auto telling_who(rank_mesh* mesh, Work work) {
  try {
    return work();
  } catch (const rank_lost&) {
    // Connections break a moment before a death is reported.
    for (int i = 0; mesh && mesh->processes() && i < 50; ++i) {
      if (auto how = mesh->processes()->ended(); !how.empty())
        throw rank_lost(how);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw;
  }
}

supervised_statistics policy::warm_up(std::span<const demonstration> batch) {
  return telling_who(parts_->mesh.get(), [&] {
    if (parts_->mesh)
      parts_->lead("warm_up", to_bytes(batch));
    return parts_->do_warm_up(batch);
  });
}

step_statistics policy::step(version from, std::span<const scored_group> groups,
                             const old_logit_supply& supply) {
  ensure(from == parts_->at, [&] {
    return "a step from " + to_string(from) + " was asked of the policy at "
           + to_string(parts_->at);
  });
  return telling_who(parts_->mesh.get(), [&] {
    if (parts_->mesh) {
      // What would fail on every rank must not be sent to them.
      step_batch(from, groups, parts_->s);
      parts_->lead("step", to_bytes(groups, supply));
    }
    return parts_->do_step(from, groups, supply);
  });
}

std::shared_ptr<old_logit_worker> policy::old_logit_helper() {
  if (parts_->s.algorithm.old_logits != old_logits_source::dedicated)
    return nullptr;
  parts_->enter();
  return within_trainer_memory(parts_->s, [&] {
    parts_->begin_reinforcement();
    return parts_->reinforce->old_logit_helper(parts_->at);
  });
}

std::vector<std::string> policy::remarks() const { return parts_->remarks; }
version policy::current() const { return parts_->at; }
std::int64_t policy::warm_up_steps() const { return parts_->warm_up_steps; }
std::vector<tensor_view> policy::views() const { return parts_->published().views(); }
std::vector<tensor_view> policy::host_views() const { return parts_->published_on_host(); }
const model::model_config& policy::config() const { return parts_->published().config(); }
const model::tokenizer& policy::tokenizer() const { return *parts_->tokens; }

void policy::save_model(const fs::path& folder) const {
  fs::create_directories(folder);
  model::save_checkpoint(folder, config(), host_views(), parts_->tokens.get());
}

} // namespace millrace::trainer
