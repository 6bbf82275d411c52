#include "actors/controller_actor.hpp"

#include "actors/shell.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

namespace millrace {

caf::behavior controller_state::start(controller_actor_options options,
                                      std::shared_ptr<prompt_feed> feed) {
  report_exceptions(self_);
  options_ = std::move(options);
  feed_ = std::move(feed);
  controller_ = std::make_unique<rollout_controller>(options_.controller, *feed_);
  self_->delayed_send(self_, after(options_.tick_s), tick_atom::value);
  self_->set_down_handler([this](const caf::down_msg& down) {
    remove(down.source);
    flush();
  });
  return {
    // -- who is there -----------------------------------------------------------------------------
    [this](joined_atom, const std::string& name, std::int64_t capacity, version v,
           const caf::actor& handle) {
      add_generator(name, capacity, v, handle);
      flush();
    },
    [this](joined_atom, const std::string& name, const caf::actor& handle) {
      auto same = [&](const reward_worker& w) { return w.handle == handle; };
      if (std::none_of(rewards_.begin(), rewards_.end(), same)) {
        self_->monitor(handle);
        rewards_.push_back({name, handle});
      }
      send_scores(std::exchange(unsent_scores_, {}));
    },
    [this](joined_atom, const caf::actor& replay) {
      if (replay == replay_)
        return;
      replay_ = replay;
      self_->monitor(replay);
      undelivered_.clear();
      controller_->replay_up();
      flush();
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
        controller_->generation_failed(r.id, r.attempt, back.reason);
      }
      flush();
    },
    [this](const claim_request& request) {
      auto reply = controller_->claim(request);
      flush();
      return reply;
    },
    [this](flight_atom) { return in_flight_reply{controller_->in_flight()}; },
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
    },
    [this](save_atom) { return controller_->save().dump(); },
    [this](save_atom, const std::string& saved) {
      controller_->load(nlohmann::json::parse(saved));
      flush();
    },
    [this](totals_atom) { return totals(); },
    [this](drain_atom) { controller_->stop_admitting(); },
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
  std::erase_if(rewards_, [&](const reward_worker& w) { return w.handle.address() == gone; });
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
  send_groups(std::move(actions.deliver));
}

void controller_state::send_assignments(std::vector<controller_actions::assignment> assignments) {
  std::map<std::size_t, assign_tasks> parcels;
  for (auto& a : assignments)
    parcels[a.generator].tasks.push_back(std::move(a.task));
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
    auto count = static_cast<std::int64_t>(ids.size());
    worker.outstanding += count;
    auto settle = [this, handle = worker.handle, count] {
      for (auto& w : rewards_)
        if (w.handle == handle)
          w.outstanding -= count;
    };
    auto timeout = options_.reward_timeout_s * static_cast<double>(count);
    self_->request(worker.handle, within(timeout), std::move(batch))
      .then(
        [this, settle](const score_results& results) {
          settle();
          for (const auto& s : results.scores)
            controller_->scored(s);
          flush();
        },
        [this, to = worker.handle, ids = std::move(ids)](const caf::error& e) {
          // A worker that is late keeps its load, so that the others are asked first.
          if (e == caf::sec::request_receiver_down)
            std::erase_if(rewards_, [&](const reward_worker& w) { return w.handle == to; });
          for (auto id : ids)
            controller_->scoring_failed(id, "no reward in time");
          flush();
        });
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
  return j.dump();
}

caf::behavior controller_actor(caf::stateful_actor<controller_state>* self,
                               controller_actor_options options,
                               std::shared_ptr<prompt_feed> feed) {
  return self->state.start(std::move(options), std::move(feed));
}

} // namespace millrace
