#include "actors/policy_backend.hpp"

#include "runtime/log.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

namespace millrace {

namespace {

/// What a batch says of itself, beside what the step computes.
void describe(const train_batch& batch, std::map<std::string, double>& values) {
  double correct = 0, length = 0, truncated = 0, n = 0, useful = 0;
  for (const auto& g : batch.groups) {
    auto same = std::all_of(g.rollouts.begin(), g.rollouts.end(), [&](const rollout& r) {
      return r.reward == g.rollouts.front().reward;
    });
    for (const auto& r : g.rollouts) {
      n += 1;
      correct += r.correct ? 1 : 0;
      length += r.generated();
      truncated += r.finish == finish_reason::length ? 1 : 0;
      if (!same)
        useful += static_cast<double>(
          std::count_if(r.versions.begin(), r.versions.end(), [](auto v) { return v >= 0; }));
    }
  }
  n = std::max(n, 1.0);
  values["accuracy"] = correct / n;
  values["length_mean"] = length / n;
  values["truncated"] = truncated / n;
  values["masked_tokens"] = static_cast<double>(batch.masked_tokens);
  // Of a group whose rewards are all equal nothing can be learnt; of a masked token neither.
  values["useful_tokens"] = useful * (1 - values["mask_fraction"]);
  values["dropped_rollouts"] = static_cast<double>(batch.dropped_rollouts);
}

/// By rollout, the first letter of the route that served each sampled token; "-" where it was masked.
std::string routes_of(const train_batch& batch, const trainer::step_statistics& stats) {
  std::string text = "training from " + to_string(batch.training_from) + ":";
  auto route = stats.old_logit_routes.begin();
  for (const auto& g : batch.groups)
    for (const auto& r : g.rollouts) {
      text += "\n" + to_string(r.id) + " ";
      for (auto t = static_cast<std::size_t>(r.prompt_length); t < r.versions.size(); ++t) {
        auto masked = r.versions[t] < 0;
        text += masked ? '-' : trainer::names(*route)[static_cast<std::size_t>(*route)].front();
        route += masked ? 0 : 1;
      }
    }
  return text;
}

} // namespace

policy_backend::policy_backend(std::shared_ptr<trainer::policy> policy,
                               std::shared_ptr<weightsync::publisher> publisher,
                               std::shared_ptr<trainer::checkpoint_store> checkpoints,
                               std::function<double()> now)
  : policy_(std::move(policy)), publisher_(std::move(publisher)),
    checkpoints_(std::move(checkpoints)), now_(std::move(now)), writer_(*checkpoints_) {
}

policy_backend::~policy_backend() {
  try {
    writer_.wait();
  } catch (const std::exception& e) {
    log::error("checkpoints", e.what());
  }
}

void policy_backend::also_publish(std::shared_ptr<weightsync::publisher> exact, double wait_s) {
  exact_ = std::move(exact);
  exact_wait_s_ = wait_s;
}

weights_published policy_backend::publish_current() {
  std::map<std::string, double> ignored;
  auto exact = publish_exact(ignored);
  auto manifest = publish(ignored);
  return {policy_->current(), std::move(manifest), now_(), std::move(exact)};
}

train_result policy_backend::train(const train_batch& batch) {
  if (observer_ && observer_->before)
    observer_->before(batch, *policy_);
  auto stats = policy_->step(batch.training_from, batch.groups, batch.supply);
  if (observer_ && observer_->after)
    observer_->after(batch, stats);
  for (const auto& remark : stats.remarks)
    log::warning("trainer", remark);
  if (log::enabled(log_level::debug) && !stats.old_logit_routes.empty())
    log::debug("old_logits", routes_of(batch, stats));
  train_result out;
  out.report.trained_from = batch.training_from;
  out.report.values = stats.values();
  reward_sum_ += stats.reward_mean;
  ++batches_;
  out.report.staleness = stats.staleness;
  describe(batch, out.report.values);
  out.exact_manifest = publish_exact(out.report.values);
  out.manifest = publish(out.report.values);
  out.report.published = policy_->current();
  return out;
}

std::string policy_backend::publish(std::map<std::string, double>& values) {
  auto began = now_();
  weightsync::publish_report report;
  auto views = policy_->views();
  if (!views.empty() && !(from_device_ && publisher_->takes(views.front().memory)))
    views = policy_->host_views();
  auto manifest = publish_by(*publisher_, views, std::numeric_limits<double>::infinity(), report);
  values["publish_s"] = now_() - began;
  values["publish_bytes"] = static_cast<double>(report.bytes);
  return manifest;
}

std::string policy_backend::publish_exact(std::map<std::string, double>& values) {
  if (!exact_)
    return {};
  auto began = now_();
  weightsync::publish_report report;
  auto manifest = publish_by(*exact_, policy_->host_views(), exact_wait_s_, report);
  values["old_logits_publish_s"] = now_() - began;
  values["old_logits_publish_bytes"] = static_cast<double>(report.bytes);
  return manifest;
}

/// The manifest; empty when no slot was free in time.
std::string policy_backend::publish_by(weightsync::publisher& by,
                                       const std::vector<tensor_view>& views, double wait_s,
                                       weightsync::publish_report& report) {
  auto until = now_() + wait_s;
  for (;;) {
    if (auto m = by.publish(policy_->current(), views, now_(), &report)) {
      auto bytes = weightsync::to_binary(*m);
      return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    if (now_() >= until)
      return {};
    // Readers hold the other slot: until they release it, or their lease ends.
    by.tick(now_());
    auto wait = std::min(0.002, std::max(0.0, by.blocked_until(now_()) - now_()));
    std::this_thread::sleep_for(std::chrono::duration<double>(wait));
  }
}

void policy_backend::save(const std::string& stream) {
  auto shards = policy_->shards_checkpoints() ? checkpoints_->make_aside() : std::filesystem::path();
  auto copy = policy_->snapshot(shards);
  auto score = batches_ > 0 ? std::optional(reward_sum_ / static_cast<double>(batches_))
                            : std::nullopt;
  auto write = [copy, shards](const std::filesystem::path& folder) {
    copy.write(folder);
    if (!shards.empty())
      std::filesystem::remove_all(shards);
  };
  writer_.submit({copy.at(), write, {{"stream.json", stream}}, score});
  reward_sum_ = 0;
  batches_ = 0;
}

} // namespace millrace
