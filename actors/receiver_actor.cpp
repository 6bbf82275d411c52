#include "actors/receiver_actor.hpp"

#include "actors/shell.hpp"

namespace millrace {

caf::behavior receiver_state::start(receiver_options options,
                                    std::shared_ptr<weight_intake> intake, caf::actor generator,
                                    caf::actor publisher) {
  report_exceptions(self_);
  options_ = std::move(options);
  intake_ = std::move(intake);
  generator_ = std::move(generator);
  publisher_ = std::move(publisher);
  insist(self_, publisher_, options_.request_timeout_s,
         caf::make_message(joined_atom::value, options_.name, caf::actor{self_}));
  return {
    [this](const weights_published& notice) {
      if (notice.v <= wanted_.v || (options_.wanted && !options_.wanted(notice.v)))
        return;
      wanted_ = notice;
      noticed_at_ = now_s(self_);
      start_pull();
    },
    [this](tick_atom) {
      busy_ = false;
      start_pull();
    },
    [this](decode_atom, const lease_reply& lease) { pull(lease); },
  };
}

void receiver_state::start_pull() {
  if (busy_ || wanted_.v <= installed_)
    return;
  busy_ = true;
  pulling_ = wanted_;
  self_->request(publisher_, within(options_.request_timeout_s),
                 lease_request{options_.name, pulling_.v})
    .then(
      [this](const lease_reply& lease) {
        if (lease.lease == 0)
          retry_later(); // a newer version is current; its notice follows, unless it isn't wanted
        else if (options_.wire_delay)
          self_->delayed_send(self_, after(options_.wire_delay()), decode_atom::value, lease);
        else
          pull(lease);
      },
      [this](const caf::error&) { retry_later(); });
}

void receiver_state::pull(const lease_reply& lease) {
  auto report = intake_->pull(pulling_.manifest, [this, lease] {
    self_->send(publisher_, lease_update{lease.lease, false});
  });
  self_->send(publisher_, lease_update{lease.lease, true});
  if (!report.ready) {
    retry_later();
    return;
  }
  weights_ready ready{pulling_.v, noticed_at_, report.pull_s, report.verify_s, report.bytes};
  self_->request<caf::message_priority::high>(generator_, caf::duration{caf::infinite}, ready)
    .then(
      [this, v = ready.v] {
        installed_ = v;
        busy_ = false;
        start_pull();
      },
      [this](const caf::error& e) { self_->quit(e); }); // it lives and dies with its generator
}

void receiver_state::retry_later() {
  self_->delayed_send(self_, after(options_.retry_s), tick_atom::value);
}

caf::behavior receiver_actor(caf::stateful_actor<receiver_state>* self, receiver_options options,
                             std::shared_ptr<weight_intake> intake, caf::actor generator,
                             caf::actor publisher) {
  return self->state.start(std::move(options), std::move(intake), std::move(generator),
                           std::move(publisher));
}

} // namespace millrace
