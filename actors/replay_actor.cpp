#include "actors/replay_actor.hpp"

#include "actors/shell.hpp"
#include "runtime/error.hpp"
#include "runtime/metrics/catalogue.hpp"

#include <algorithm>
#include <array>

namespace millrace {

namespace {

/// The batch as the trainer gets it: tokens beyond η become context.
train_batch to_message(const training_batch& batch, std::int64_t dropped) {
  train_batch out{batch.from, {}, batch.masked_tokens, dropped};
  auto masked = batch.masked.begin();
  for (const auto& group : batch.groups) {
    out.groups.push_back(*group);
    for (auto& r : out.groups.back().rollouts) {
      if (masked == batch.masked.end() || masked->id != r.id)
        continue;
      for (auto span : masked->spans)
        std::fill(r.versions.begin() + span.begin, r.versions.begin() + span.end,
                  no_version.value);
      ++masked;
    }
  }
  return out;
}

void show_staleness(metric_set& m, const staleness_histogram& h) {
  std::array<double, 10> by_staleness{};
  for (auto [versions, rollouts] : h.head)
    by_staleness[static_cast<std::size_t>(std::clamp(versions, 0, 9))]
      += static_cast<double>(rollouts);
  for (std::size_t i = 0; i < by_staleness.size(); ++i)
    m.set(metrics::queue_by_staleness, metrics::staleness_label(static_cast<std::int64_t>(i)),
          by_staleness[i]);
  m.set(metrics::queue_staleness, "head", h.head.empty() ? 0 : h.head.rbegin()->first);
  m.set(metrics::queue_staleness, "tail", h.tail.empty() ? 0 : h.tail.begin()->first);
  m.set(metrics::queue_staleness, "span", h.span.empty() ? 0 : h.span.rbegin()->first);
}

} // namespace

caf::behavior replay_state::start(replay_actor_options options, caf::actor controller,
                                  const caf::actor& trainer) {
  report_exceptions(self_);
  options_ = std::move(options);
  controller_ = std::move(controller);
  // The budget is free again when a version is published, which the buffer learns only from the next
  // request: until then it holds the trained batch beside a whole budget of others.
  options_.buffer.capacity += options_.buffer.batch_size;
  buffer_ = std::make_unique<replay_buffer>(options_.buffer);
  seen_ = {self_, "replay", "replay"};
  show();
  insist(self_, controller_, options_.request_timeout_s,
         caf::make_message(replay_joined_atom::value, caf::actor{self_}));
  if (trainer)
    insist(self_, trainer, options_.request_timeout_s,
           caf::make_message(replay_joined_atom::value, caf::actor{self_}));
  return {
    [this](buffer_groups& groups) { insert(groups); },
    [this](const batch_request& request) { return take_request(request); },
    answer_introspection(seen_),
  };
}

void replay_state::insert(buffer_groups& groups) {
  for (auto& g : groups.groups) {
    auto id = g.group;
    ensure(buffer_->insert(std::move(g)) != insert_result::full,
           [&] { return "the replay buffer was full when group " + std::to_string(id) + " came"; });
  }
  attempt();
  show();
}

caf::result<train_batch> replay_state::take_request(const batch_request& request) {
  if (request.training_from < asked_)
    return caf::make_error(caf::sec::invalid_argument, std::string("an older version's batch"));
  if (auto out = buffer_->batch_out(); out && out->from < request.training_from)
    buffer_->confirmed(out->from); // only after its step does the trainer ask from the next version
  if (request.training_from > asked_)
    asked_at_ = now_s(self_);
  asked_ = request.training_from;
  promise_ = self_->make_response_promise<train_batch>();
  auto answer = promise_;
  attempt();
  show();
  return answer;
}

void replay_state::attempt() {
  if (!promise_.pending() || busy_)
    return;
  if (options_.buffer.over_bound != over_bound::wait
      || now_s(self_) > asked_at_ + options_.wait_timeout_s) {
    attempt({});
    return;
  }
  busy_ = true;
  self_->request(controller_, within(options_.request_timeout_s), flight_atom::value)
    .then(
      [this](const in_flight_reply& reply) {
        busy_ = false;
        attempt(reply.rollouts);
      },
      [this](const caf::error&) { busy_ = false; }); // the trainer asks again
}

void replay_state::attempt(std::span<const in_flight_rollout> in_flight) {
  auto offer = buffer_->hand_out(asked_, in_flight);
  using enum hand_out_result::state;
  if (offer.what == ready || !offer.dropped.empty())
    claim(offer);
}

void replay_state::claim(const hand_out_result& offer) {
  claim_request request{asked_, {}, offer.dropped};
  if (offer.what == hand_out_result::state::ready)
    for (const auto& g : offer.batch->groups)
      request.take.push_back(g->group);
  busy_ = true;
  self_->request(controller_, within(options_.request_timeout_s), request)
    .then(
      [this, offered = request.take](const claim_reply& reply) {
        busy_ = false;
        granted(reply, offered);
      },
      [this](const caf::error&) { busy_ = false; }); // the trainer asks again
}

void replay_state::granted(const claim_reply& reply, const std::vector<std::int64_t>& offered) {
  if (reply.published != asked_)
    return; // the trainer has gone on: it will ask for that version
  if (reply.granted == offered) {
    if (!offered.empty())
      deliver();
    return;
  }
  // The controller knows better: some were trained already, or an earlier life of this buffer had
  // claimed others for the same version. Those may still be on their way here.
  auto full = static_cast<std::int64_t>(reply.granted.size()) > 0
              && buffer_->adopt(asked_, reply.granted).empty()
              && buffer_->in_training() >= options_.buffer.batch_size;
  if (full) {
    deliver();
    return;
  }
  buffer_->take_back();
  buffer_->drop(reply.ended);
  if (!reply.ended.empty())
    attempt();
}

void replay_state::deliver() {
  if (!promise_.pending())
    return; // the trainer asks again, and gets the same batch
  auto dropped = buffer_->counters().dropped;
  const auto& out = *buffer_->batch_out();
  if (shown_out_ != out.from) {
    shown_out_ = out.from;
    seen_.metrics().add(metrics::replay_handed_out, static_cast<double>(out.rollouts));
  }
  promise_.deliver(to_message(out, dropped - dropped_before_));
  dropped_before_ = dropped;
  show();
}

void replay_state::show() {
  auto& m = seen_.metrics();
  const auto& c = buffer_->counters();
  m.set(metrics::replay_depth, static_cast<double>(buffer_->depth()));
  m.set(metrics::replay_capacity, static_cast<double>(options_.buffer.capacity));
  m.set_total(metrics::replay_inserted, static_cast<double>(c.inserted));
  m.set_total(metrics::replay_over_bound, "mask", static_cast<double>(c.masked));
  m.set_total(metrics::replay_over_bound, "drop", static_cast<double>(c.dropped));
  m.set_total(metrics::replay_over_bound, "wait", static_cast<double>(c.waits));
  m.set_total(metrics::tokens_masked, static_cast<double>(c.masked_tokens));
  show_staleness(m, buffer_->staleness_if_trained(std::max(asked_, version{0})));
  auto lacking = options_.buffer.batch_size - buffer_->depth();
  if (promise_.pending() && !busy_ && lacking > 0)
    seen_.waiting("controller", std::to_string(lacking) + " more rollouts for the step from "
                                  + to_string(asked_));
  else if (promise_.pending())
    seen_.waiting("controller", busy_ ? "its word on a batch for " + to_string(asked_)
                                      : "older rollouts to finish before " + to_string(asked_));
  else
    seen_.working(buffer_->depth() > 0 ? "holding" : "empty");
}

caf::behavior replay_actor(caf::stateful_actor<replay_state>* self, replay_actor_options options,
                           caf::actor controller, caf::actor trainer) {
  return self->state.start(std::move(options), std::move(controller), trainer);
}

} // namespace millrace
