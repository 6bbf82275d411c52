#include "actors/generator_actor.hpp"

#include "actors/shell.hpp"
#include "runtime/error.hpp"
#include "runtime/metrics/catalogue.hpp"

#include <algorithm>

namespace millrace {

caf::behavior generator_state::start(generator_options options,
                                     std::shared_ptr<generation::engine> engine,
                                     std::shared_ptr<weight_intake> intake,
                                     generator_peers peers) {
  report_exceptions(self_);
  options_ = std::move(options);
  engine_ = std::move(engine);
  peers_ = std::move(peers);
  report_.generator = options_.name;
  report_.v = no_version;
  started_at_ = now_s(self_);
  seen_ = {self_, "generator", options_.name};
  seen_.waiting("publisher", "its first weights");
  caf::actor self{self_};
  if (options_.receiver_thread)
    self_->spawn<caf::linked + caf::detached>(receiver_actor, options_.receiver, std::move(intake),
                                              self, peers_.publisher);
  else
    self_->spawn<caf::linked>(receiver_actor, options_.receiver, std::move(intake), self,
                              peers_.publisher);
  self_->delayed_send(self_, after(options_.report_s), tick_atom::value);
  return {
    [this](assign_tasks& assigned) { take(assigned); },
    [this](const cancel_rollouts& c) { cancel(c.ids); },
    [this](decode_atom) { decode(); },
    [this](const weights_ready& ready) { install(ready); },
    [this](drain_atom) {
      draining_ = true;
      return_all("its generator stopped");
    },
    [this](tick_atom) {
      report();
      self_->delayed_send(self_, after(options_.report_s), tick_atom::value);
    },
    answer_introspection(seen_),
  };
}

void generator_state::cancel(std::span<const rollout_id> ids) {
  auto wanted = [&](const rollout& r) { return std::find(ids.begin(), ids.end(), r.id) != ids.end(); };
  for (const auto& r : engine_->partials()) // cancelling is rare
    if (wanted(r)) {
      report_.discarded_tokens += r.generated();
      seen_.metrics().add(metrics::answers, to_string(finish_reason::cancelled), 1);
    }
  for (auto id : ids) {
    engine_->cancel(id);
    held_.erase(id);
  }
}

void generator_state::take(assign_tasks& assigned) {
  rollouts_returned refused;
  for (auto& task : assigned.tasks) {
    auto id = task.so_far.id;
    if (held_.contains(id))
      continue;
    if (draining_) {
      refused.rollouts.push_back(std::move(task.so_far));
      refused.reason = "its generator stopped";
      continue;
    }
    auto again = task.so_far;
    try {
      engine_->submit(std::move(task));
      held_.insert(id);
    } catch (const user_error& e) {
      refused.rollouts.push_back(std::move(again));
      refused.reason = e.what();
    }
  }
  if (!refused.rollouts.empty())
    insist(self_, peers_.controller, options_.request_timeout_s,
           caf::make_message(std::move(refused)));
  wake();
}

void generator_state::wake() {
  if (engine_->current() < version{0})
    return;
  if (engine_->running() + engine_->waiting() == 0) {
    seen_.waiting("controller", draining_ ? "nothing: it is stopping" : "rollouts to start");
    return;
  }
  if (const auto other = engine_->waits_for(); !other.empty())
    seen_.waiting(other, "an answer: it went away");
  else
    seen_.working("decoding");
  if (decoding_)
    return;
  decoding_ = true;
  if (options_.step_delay)
    self_->delayed_send(self_, after(options_.step_delay()), decode_atom::value);
  else
    self_->send(self_, decode_atom::value);
}

void generator_state::decode() {
  decoding_ = false;
  auto began = now_s(self_);
  auto done = engine_->step();
  report_.busy_s += now_s(self_) - began;
  if (!done.empty()) {
    show(done);
    for (const auto& r : done)
      held_.erase(r.id);
    insist(self_, peers_.controller, options_.request_timeout_s,
           caf::make_message(rollouts_finished{std::move(done)}));
  }
  if (options_.progress_every_tokens > 0
      && ++steps_since_progress_ >= options_.progress_every_tokens) {
    steps_since_progress_ = 0;
    self_->send(peers_.controller, rollouts_progress{engine_->partials()});
  }
  wake();
}

void generator_state::install(const weights_ready& ready) {
  auto began = now_s(self_);
  seen_.working("swapping weights");
  auto swap = engine_->install(ready.v);
  auto now = now_s(self_);
  swap.total_s = now - ready.noticed_at;
  swap.pull_s = ready.pull_s;
  swap.verify_s = ready.verify_s;
  swap.load_s = ready.load_s;
  swap.quantise_s = ready.quantise_s;
  swap.bytes = ready.bytes;
  report_.paused_s += now - began;
  show(swap);
  report_.v = ready.v;
  report_.swaps.push_back(swap);
  if (options_.progress_at_swap)
    self_->send(peers_.controller, rollouts_progress{engine_->partials()});
  // One message joins and acknowledges: two could overtake each other.
  insist(self_, peers_.controller, options_.request_timeout_s,
         caf::make_message(generator_joined_atom::value, options_.name, options_.capacity, ready.v,
                           caf::actor{self_}),
         [this, v = ready.v] { return report_.v == v; });
  report();
  wake();
}

void generator_state::return_all(const std::string& reason) {
  held_.clear();
  insist(self_, peers_.controller, options_.request_timeout_s,
         caf::make_message(rollouts_returned{engine_->drain(), reason, options_.name}), {},
         [this] { self_->quit(caf::exit_reason::user_shutdown); });
}

void generator_state::report() {
  auto s = engine_->statistics();
  report_.running = static_cast<std::int64_t>(engine_->running());
  report_.waiting = static_cast<std::int64_t>(engine_->waiting());
  report_.generated_tokens = s.sampled_tokens;
  report_.reprefilled_tokens = s.reprefilled_tokens;
  report_.idle_s = std::max(0.0, now_s(self_) - started_at_ - report_.busy_s - report_.paused_s);
  show_load();
  self_->send(peers_.recorder, report_);
  report_.swaps.clear();
}

// -- metrics --------------------------------------------------------------------------------------

void generator_state::show_load() {
  auto& m = seen_.metrics();
  auto s = engine_->statistics();
  m.set_total(metrics::tokens_generated, static_cast<double>(report_.generated_tokens));
  m.set_total(metrics::tokens_reprefilled, static_cast<double>(report_.reprefilled_tokens));
  m.set_total(metrics::tokens_discarded, static_cast<double>(report_.discarded_tokens));
  m.set_total(metrics::generator_busy, report_.busy_s);
  m.set_total(metrics::generator_idle, report_.idle_s);
  m.set_total(metrics::generator_paused, report_.paused_s);
  m.set(metrics::generator_running, static_cast<double>(report_.running));
  m.set(metrics::generator_waiting, static_cast<double>(report_.waiting));
  m.set(metrics::generator_version, report_.v.value);
  m.set(metrics::kv_cache_used, s.kv_blocks - s.kv_blocks_free);
  m.set(metrics::kv_cache_capacity, s.kv_blocks);
  auto now = now_s(self_);
  idle_at_.emplace_back(now, report_.idle_s);
  while (idle_at_.size() > 2 && idle_at_[1].first <= now - 5)
    idle_at_.pop_front();
  auto [since, idle] = idle_at_.front();
  if (now > since)
    m.set(metrics::generator_idle_ratio, std::clamp((report_.idle_s - idle) / (now - since), 0.0, 1.0));
}

void generator_state::show(const swap_report& swap) {
  auto& m = seen_.metrics();
  m.add(metrics::swap_bytes, static_cast<double>(swap.bytes));
  if (swap.from < version{0})
    return; // nothing was interrupted
  m.observe(metrics::swap_pause, swap.pause_s);
  m.observe(metrics::swap_total, swap.total_s);
  m.observe(metrics::swap_stage, "pull", swap.pull_s);
  m.observe(metrics::swap_stage, "verify", swap.verify_s);
  m.observe(metrics::swap_stage, "load", swap.load_s);
  m.observe(metrics::swap_stage, "quantise", swap.quantise_s);
  m.observe(metrics::swap_stage, "prefill", swap.prefill_s);
}

void generator_state::show(std::span<const rollout> done) {
  auto& m = seen_.metrics();
  for (const auto& r : done) {
    m.observe(metrics::answer_length, r.generated());
    m.add(metrics::answers, to_string(r.finish), 1);
  }
}

caf::behavior generator_actor(caf::stateful_actor<generator_state>* self,
                              generator_options options,
                              std::shared_ptr<generation::engine> engine,
                              std::shared_ptr<weight_intake> intake, generator_peers peers) {
  return self->state.start(std::move(options), std::move(engine), std::move(intake),
                           std::move(peers));
}

} // namespace millrace
