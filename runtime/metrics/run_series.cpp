#include "runtime/metrics/run_series.hpp"

#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/lookup.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

constexpr double window_s = 10;

constexpr const char* names[run_series::columns] = {
  "t", "step", "reward", "accuracy", "eval_accuracy", "generated", "trained", "useful",
  "generator_idle", "trainer_idle", "staleness_mean", "staleness_max", "queue", "running",
  "entropy", "kl", "ess", "grad_norm"};

} // namespace

void run_series::sample(std::span<const actor_snapshot> actors, double now) {
  using namespace metrics;
  const totals sums{total(actors, tokens_generated),   total(actors, tokens_trained),
                    total(actors, tokens_useful),      total(actors, tokens_reprefilled),
                    total(actors, tokens_discarded),   total(actors, answers),
                    total(actors, steps_trained)};
  // An actor that was started again counts from 0: its first sample begins a new window.
  if (!recent_.empty() && !std::equal(sums.begin(), sums.end(), recent_.back().second.begin(),
                                      [](double a, double b) { return a >= b; }))
    recent_.clear();
  recent_.emplace_back(now, sums);
  // Warming up and evaluating are no part of the window: it begins where the stream does.
  while (recent_.size() > 1 && recent_[1].second == totals{})
    recent_.pop_front();
  while (recent_.size() > 2 && recent_[1].first <= now - window_s)
    recent_.pop_front();
  if (const auto span = now - recent_.front().first; span > 0) {
    const auto per_s = [&](std::size_t i) { return (sums[i] - recent_.front().second[i]) / span; };
    rates_ = {per_s(0), per_s(1), per_s(2), per_s(3), per_s(4), per_s(5), per_s(6)};
  }
  if (now - began_ < next_ || first_of(actors, "trainer") == nullptr)
    return;
  // What a step tells is nothing yet before the first.
  const auto of_step = [&, trained = sums[6] > 0](const gauge& m) {
    return trained ? mean(actors, m) : std::nan("");
  };
  const auto held_out = mean(actors, held_out_accuracy);
  next_ = now - began_ + interval_ - 0.5; // the caller's seconds are not exact
  rows_.push_back({now - began_,
                   largest(actors, stream_version),
                   of_step(batch_reward_mean),
                   of_step(batch_accuracy),
                   held_out > 0 ? held_out : std::nan(""),
                   rates_.generated,
                   rates_.trained,
                   rates_.useful,
                   mean(actors, generator_idle_ratio),
                   of_step(trainer_idle_ratio),
                   of_step(staleness_mean),
                   of_step(staleness_max),
                   total(actors, replay_depth),
                   total(actors, generator_running),
                   of_step(entropy),
                   of_step(kl_infer_train),
                   of_step(effective_sample_size),
                   of_step(grad_norm)});
  if (rows_.size() < capacity_)
    return;
  for (std::size_t i = 0; 2 * i < rows_.size(); ++i)
    rows_[i] = rows_[2 * i];
  rows_.resize((rows_.size() + 1) / 2);
  interval_ *= 2;
}

nlohmann::ordered_json run_series::to_json() const {
  nlohmann::ordered_json out;
  for (std::size_t c = 0; c < columns; ++c) {
    auto& column = out[names[c]] = nlohmann::ordered_json::array();
    for (const auto& r : rows_)
      column.push_back(r[c]);
  }
  return out;
}

} // namespace millrace
