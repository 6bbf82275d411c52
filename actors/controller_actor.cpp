#include "actors/controller_actor.hpp"

#include "actors/controller_metrics.hpp"
#include "actors/shell.hpp"
#include "runtime/metrics/catalogue.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

namespace millrace {

namespace {

/// Reasons are texts of rewards and plugins: what is no UTF-8 in them must not end the stream.
std::string dumped(const nlohmann::json& j) {
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

} // namespace

caf::behavior controller_state::start(controller_actor_options options,
                                      std::shared_ptr<prompt_feed> feed) {
  report_exceptions(self_);
  options_ = std::move(options);
  feed_ = std::move(feed);
  seen_ = {self_, "controller", "controller"};
  controller_ = std::make_unique<rollout_controller>(options_.controller, *feed_);
  self_->delayed_send(self_, after(options_.tick_s), tick_atom::value);
  self_->set_down_handler([this](const caf::down_msg& down) {
    remove(down.source);
    flush();
  });
  return {
    // -- who is there -----------------------------------------------------------------------------
    [this](generator_joined_atom, const std::string& name, std::int64_t capacity, version v,
           const caf::actor& handle) {
      add_generator(name, capacity, v, handle);
      flush();
    },
    [this](reward_joined_atom, const std::string& name, const caf::actor& handle) {
      auto same = [&](const reward_worker& w) { return w.handle == handle; };
      if (std::none_of(rewards_.begin(), rewards_.end(), same)) {
        self_->monitor(handle);
        rewards_.push_back({name, handle});
      }
      send_scores(std::exchange(unsent_scores_, {}));
    },
    [this](replay_joined_atom, const caf::actor& replay) {
      if (replay == replay_)
        return;
      replay_ = replay;
      self_->monitor(replay);
      undelivered_.clear();
      controller_->replay_up();
      repeating_ = true;
      flush();
      repeating_ = false;
    },
    // -- the stream -------------------------------------------------------------------------------
    [this](rollouts_finished& done) {
      for (auto& r : done.rollouts)
        controller_->finished(std::move(r));
      flush();
    },
    [this](const rollouts_progress& partial) {
      for (const auto& r : partial.rollouts)
        controller_->progress(r);
    },
    [this](const rollouts_returned& back) {
      for (const auto& r : back.rollouts) {
        controller_->progress(r);
        if (back.leaving.empty())
          controller_->generation_failed(r.id, r.attempt, back.reason);
      }
      if (!back.leaving.empty())
        controller_->generator_left(back.leaving);
      flush();
    },
    [this](const claim_request& request) {
      auto reply = controller_->claim(request);
      flush();
      return reply;
    },
    [this](flight_atom) { return in_flight_reply{controller_->in_flight()}; },
    [this](const in_flight_query& q) { return controller_->sampled_since(q.since); },
    [this](annotate_atom, const caf::actor& annotator) {
      self_->monitor(annotator);
      annotators_.push_back(annotator);
    },
    [this](filter_atom, const std::string&, const caf::actor& filter) {
      if (std::find(filters_.begin(), filters_.end(), filter) == filters_.end()) {
        self_->monitor(filter);
        filters_.push_back(filter);
      }
    },
    [this](const weights_published& p) {
      controller_->published(p.v);
      flush();
    },
    // -- the rest ---------------------------------------------------------------------------------
    [this](tick_atom) {
      self_->delayed_send(self_, after(options_.tick_s), tick_atom::value);
      controller_->tick(now_s(self_));
      flush();
      send_groups(std::exchange(undelivered_, {}));
      show();
    },
    [this](save_atom) { return dumped(controller_->save()); },
    [this](save_atom, const std::string& saved) {
      controller_->load(nlohmann::json::parse(saved));
      flush();
    },
    [this](totals_atom) { return totals(); },
    [this](drain_atom) { controller_->stop_admitting(); },
    answer_introspection(seen_),
  };
}

void controller_state::add_generator(const std::string& name, std::int64_t capacity, version v,
                                     const caf::actor& handle) {
  for (std::size_t i = 0; i < generators_.size(); ++i)
    if (generators_[i] == handle && controller_->generators()[i].up) {
      controller_->generator_acknowledged(i, v);
      return;
    }
  self_->monitor(handle);
  auto i = controller_->generator_up(name, capacity);
  if (i >= generators_.size())
    generators_.resize(i + 1);
  generators_[i] = handle;
  controller_->generator_acknowledged(i, v);
}

void controller_state::remove(const caf::actor_addr& gone) {
  for (std::size_t i = 0; i < generators_.size(); ++i)
    if (generators_[i].address() == gone)
      controller_->generator_down(i);
  reward_worker_lost(gone);
  std::erase_if(annotators_, [&](const caf::actor& a) { return a.address() == gone; });
  std::erase_if(filters_, [&](const caf::actor& a) { return a.address() == gone; });
  if (replay_.address() == gone)
    replay_ = nullptr;
}

void controller_state::flush() {
  auto actions = controller_->take_actions();
  if (options_.observe)
    options_.observe(*controller_);
  if (actions.empty())
    return;
  std::map<std::size_t, cancel_rollouts> cancels;
  for (const auto& c : actions.cancel)
    cancels[c.generator].ids.push_back(c.id);
  for (auto& [generator, ids] : cancels)
    self_->send(generators_[generator], std::move(ids));
  send_assignments(std::move(actions.assign));
  send_scores(std::move(actions.score));
  if (!repeating_)
    count_rewards(seen_.metrics(), actions.deliver);
  if (repeating_) { // those in question are delivered once they are answered for
    std::erase_if(actions.deliver, [&](const auto& g) { return in_question_.contains(g.group); });
    send_groups(std::move(actions.deliver));
    return;
  }
  if (filters_.empty())
    return deliver(std::move(actions.deliver));
  for (const auto& g : actions.deliver)
    in_question_.insert(g.group);
  ask_filters(filters_, std::move(actions.deliver));
}

/// One filter after another; what is left in the end goes to the buffer. One that does not answer
/// has no say.
void controller_state::ask_filters(std::vector<caf::actor> left, std::vector<scored_group> groups) {
  if (left.empty() || groups.empty()) {
    for (const auto& g : groups)
      in_question_.erase(g.group);
    return deliver(std::move(groups));
  }
  auto filter = left.front();
  left.erase(left.begin());
  auto copy = groups;
  self_->request(filter, within(options_.reward_timeout_s), buffer_groups{std::move(groups)})
    .then(
      [this, left, copy](const filter_verdict& v) {
        auto rest = copy;
        for (std::size_t i = 0; i < v.vetoed.size() && i < v.reasons.size(); ++i) {
          controller_->filter(v.vetoed[i], v.reasons[i]);
          in_question_.erase(v.vetoed[i]);
          std::erase_if(rest, [&](const scored_group& g) { return g.group == v.vetoed[i]; });
        }
        ask_filters(left, std::move(rest));
        flush();
      },
      [this, left, copy](const caf::error&) {
        seen_.metrics().add(metrics::filters_late, static_cast<double>(copy.size()));
        ask_filters(left, copy);
      });
}

void controller_state::deliver(std::vector<scored_group> groups) {
  if (!groups.empty())
    for (const auto& a : annotators_)
      self_->send(a, buffer_groups{groups});
  send_groups(std::move(groups));
}

void controller_state::send_assignments(std::vector<controller_actions::assignment> assignments) {
  std::map<std::size_t, assign_tasks> parcels;
  for (auto& a : assignments) {
    if (a.task.so_far.attempt > 0)
      seen_.metrics().add(metrics::rollouts_retried);
    parcels[a.generator].tasks.push_back(std::move(a.task));
  }
  for (auto& [generator, tasks] : parcels)
    hand_out(generator, std::move(tasks));
}

void controller_state::hand_out(std::size_t generator, assign_tasks tasks) {
  auto to = generators_[generator];
  auto copy = caf::make_message(tasks);
  self_->request(to, within(options_.request_timeout_s), std::move(tasks))
    .then([] {},
          [this, generator, to, copy](const caf::error& e) {
            if (generators_[generator] != to)
              return; // its successor has other tasks
            if (e == caf::sec::request_receiver_down) {
              controller_->generator_down(generator);
              flush();
              return;
            }
            // Late or lost: the same attempt again, as far as it is still wanted. The generator
            // takes each once.
            assign_tasks again = copy.get_as<assign_tasks>(0);
            std::erase_if(again.tasks, [&](const generation_task& t) {
              return !controller_->handed_to(generator, t.so_far.id, t.so_far.attempt);
            });
            if (!again.tasks.empty())
              hand_out(generator, std::move(again));
          });
}

void controller_state::send_scores(std::vector<score_request> requests) {
  if (rewards_.empty()) {
    std::move(requests.begin(), requests.end(), std::back_inserter(unsent_scores_));
    return;
  }
  for (std::size_t begin = 0; begin < requests.size(); begin += options_.score_chunk) {
    auto end = std::min(begin + options_.score_chunk, requests.size());
    score_batch batch{{std::make_move_iterator(requests.begin() + static_cast<std::ptrdiff_t>(begin)),
                       std::make_move_iterator(requests.begin() + static_cast<std::ptrdiff_t>(end))}};
    std::vector<rollout_id> ids;
    for (const auto& r : batch.requests)
      ids.push_back(r.id);
    auto& worker = *std::min_element(rewards_.begin(), rewards_.end(),
                                     [](const reward_worker& a, const reward_worker& b) {
                                       return a.outstanding < b.outstanding;
                                     });
    auto count = static_cast<double>(ids.size());
    auto question = ++questions_;
    worker.outstanding += static_cast<std::int64_t>(ids.size());
    worker.asked[question] = ids;
    self_->request(worker.handle, within(options_.reward_timeout_s * count), std::move(batch))
      .then(
        [this, to = worker.handle, question, count](const score_results& results) {
          settle(to, question);
          for (auto& w : rewards_)
            if (w.handle == to)
              w.outstanding -= static_cast<std::int64_t>(count);
          for (const auto& s : results.scores)
            if (s.failure.empty())
              judged(s);
            else
              judging_failed(s.id, s.failure);
          flush();
        },
        [this, to = worker.handle, question, ids = std::move(ids)](const caf::error& e) {
          // A worker that is late keeps its load, so that the others are asked first.
          if (e == caf::sec::request_receiver_down)
            reward_worker_lost(to.address());
          else if (settle(to, question)) {
            seen_.metrics().add(metrics::scores_late, static_cast<double>(ids.size()));
            for (auto id : ids)
              judging_failed(id, "no reward in time");
          }
          flush();
        });
  }
}

void controller_state::judged(const score& s) {
  judged_any_ = true;
  controller_->scored(s);
}

/// The ledger is read when a run has ended: one in which nothing can be judged says so before.
void controller_state::judging_failed(rollout_id id, const std::string& reason) {
  if (++judging_failures_ == next_told_failure_) {
    next_told_failure_ *= 10;
    if (options_.warn)
      options_.warn("judging has failed " + std::to_string(judging_failures_)
                    + " times so far; the last time: " + reason);
  }
  if (!judged_any_ && judging_failures_ == options_.max_failures_at_first && options_.give_up)
    options_.give_up("no answer can be judged: the first " + std::to_string(judging_failures_)
                     + " failed; the last one: " + reason);
  controller_->scoring_failed(id, reason);
}

bool controller_state::settle(const caf::actor& worker, std::uint64_t question) {
  for (auto& w : rewards_)
    if (w.handle == worker)
      return w.asked.erase(question) > 0;
  return false;
}

/// A question to an actor in another process ends only at its own time-out, long after that process
/// has died: what the worker owes is asked of the others now.
void controller_state::reward_worker_lost(const caf::actor_addr& gone) {
  for (std::size_t i = 0; i < rewards_.size(); ++i) {
    if (rewards_[i].handle.address() != gone)
      continue;
    auto asked = std::move(rewards_[i].asked);
    rewards_.erase(rewards_.begin() + static_cast<std::ptrdiff_t>(i));
    for (const auto& [question, ids] : asked)
      for (auto id : ids)
        controller_->scoring_failed(id, "its reward worker died");
    return;
  }
}

void controller_state::send_groups(std::vector<scored_group> groups) {
  if (groups.empty() || !replay_)
    return; // replay_up() delivers all when it comes
  auto copy = groups;
  self_->request(replay_, within(options_.request_timeout_s), buffer_groups{std::move(groups)})
    .then([] {},
          [this, to = replay_, again = std::move(copy)](const caf::error&) mutable {
            if (to == replay_) // else its successor got them; the buffer takes each group once
              std::move(again.begin(), again.end(), std::back_inserter(undelivered_));
          });
}

void controller_state::show() {
  show_controller(seen_.metrics(), *controller_, options_.controller);
  auto wait = controller_wait(*controller_, options_.controller.limits);
  if (wait.on.empty())
    seen_.working("admitting");
  else
    seen_.waiting(wait.on, wait.reason);
}

std::string controller_state::totals() const {
  const auto& t = controller_->totals();
  nlohmann::json j{{"admitted", t.admitted},
                   {"in_flight", t.in_flight()},
                   {"balanced", t.balanced()},
                   {"reasons", t.reasons},
                   {"published", controller_->published_version().value},
                   {"waits_for", controller_->waits_for()}};
  for (std::size_t s = 0; s < rollout_state_count; ++s)
    j[std::string(to_string(static_cast<rollout_state>(s)))] = t.in_state[s];
  return dumped(j);
}

caf::behavior controller_actor(caf::stateful_actor<controller_state>* self,
                               controller_actor_options options,
                               std::shared_ptr<prompt_feed> feed) {
  return self->state.start(std::move(options), std::move(feed));
}

} // namespace millrace
