#include "actors/receiver_actor.hpp"

#include "actors/shell.hpp"
#include "runtime/metrics/catalogue.hpp"

#include <algorithm>

namespace millrace {

caf::behavior receiver_state::start(receiver_options options,
                                    std::shared_ptr<weight_intake> intake, caf::actor generator,
                                    caf::actor publisher) {
  report_exceptions(self_);
  options_ = std::move(options);
  intake_ = std::move(intake);
  generator_ = std::move(generator);
  publisher_ = std::move(publisher);
  // "generator-0#3" is its third life.
  seen_ = {self_, "receiver", options_.name.substr(0, options_.name.find('#')) + "/receiver"};
  seen_.waiting("publisher", "weights");
  insist(self_, publisher_, options_.request_timeout_s,
         caf::make_message(receiver_joined_atom::value, options_.name, caf::actor{self_}));
  return {
    [this](const weights_published& notice) {
      if (notice.v <= wanted_.v || (options_.wanted && !options_.wanted(notice.v)))
        return;
      if (wanted_.v > installed_ && !(busy_ && pulling_.v == wanted_.v))
        give_up_on(wanted_.v);
      wanted_ = notice;
      noticed_at_ = now_s(self_);
      start_pull();
    },
    [this](tick_atom) {
      busy_ = false;
      start_pull();
    },
    [this](decode_atom, const lease_reply& lease) { pull(lease); },
    answer_introspection(seen_),
  };
}

void receiver_state::start_pull() {
  if (busy_)
    return;
  if (wanted_.v <= installed_) {
    seen_.waiting("publisher", "weights newer than " + to_string(installed_));
    return;
  }
  busy_ = true;
  pulling_ = wanted_;
  seen_.waiting("publisher", "a lease on " + to_string(pulling_.v));
  self_->request(publisher_, within(options_.request_timeout_s),
                 lease_request{options_.name, pulling_.v})
    .then(
      [this](const lease_reply& lease) {
        if (lease.lease == 0 && lease.current > pulling_.v) {
          // Its buffer is being filled with a newer version, whose notice follows if it is wanted.
          give_up_on(pulling_.v);
          installed_ = pulling_.v;
          busy_ = false;
          start_pull();
        } else if (lease.lease == 0) {
          ask_again();
        } else if (options_.wire_delay) {
          self_->delayed_send(self_, after(options_.wire_delay()), decode_atom::value, lease);
        } else {
          pull(lease);
        }
      },
      [this](const caf::error&) { ask_again(); });
}

void receiver_state::pull(const lease_reply& lease) {
  seen_.working("pulling weights");
  auto report = intake_->pull(pulling_.manifest, [this, lease] {
    self_->send(publisher_, lease_update{lease.lease, false});
  });
  self_->send(publisher_, lease_update{lease.lease, true});
  show(report);
  if (!report.ready) {
    failed(report.error);
    return;
  }
  failures_ = 0;
  offer({pulling_.v, noticed_at_, report.pull_s, report.verify_s, report.bytes, report.load_s,
         report.quantise_s});
}

void receiver_state::offer(const weights_ready& ready) {
  auto whose = options_.name.substr(0, options_.name.find('#'));
  seen_.waiting(whose, to_string(ready.v) + " to be taken");
  self_->request<caf::message_priority::high>(generator_, within(options_.install_timeout_s), ready)
    .then(
      [this, v = ready.v] {
        installed_ = v;
        busy_ = false;
        start_pull();
      },
      [this, v = ready.v](const caf::error& e) { // it lives and dies with its generator
        if (e == caf::sec::request_timeout)
          self_->quit(caf::make_error(caf::sec::runtime_error,
                                      to_string(v) + " was ready and not taken in "
                                        + std::to_string(static_cast<int>(options_.install_timeout_s))
                                        + " s"));
        else
          self_->quit(e);
      });
}

void receiver_state::failed(const std::string& why) {
  if (++failures_ < options_.max_failures) {
    ask_again();
    return;
  }
  self_->quit(caf::make_error(caf::sec::runtime_error,
                              to_string(pulling_.v) + " could not be pulled, nor what came before, "
                                + std::to_string(failures_) + " times in a row; the last time: "
                                + why));
}

void receiver_state::give_up_on(version v) {
  seen_.metrics().add(metrics::pulls, "superseded", 1);
  if (options_.passed_over)
    options_.passed_over(v);
}

void receiver_state::ask_again() {
  auto delay = options_.retry_s * static_cast<double>(1U << std::min(std::max(0, failures_ - 1), 4));
  self_->delayed_send(self_, after(delay), tick_atom::value);
}

void receiver_state::show(const intake_report& report) {
  auto& m = seen_.metrics();
  m.add(metrics::pulls, report.ready ? "done" : "failed", 1);
  m.add(metrics::shard_reads_repeated, static_cast<double>(report.repeated_reads));
  m.add(metrics::pull_bytes, static_cast<double>(report.bytes));
  m.add(metrics::pull_bytes_saved, static_cast<double>(report.saved_bytes));
  if (report.link_share > 0)
    m.set(metrics::link_share, report.link_share);
}

caf::behavior receiver_actor(caf::stateful_actor<receiver_state>* self, receiver_options options,
                             std::shared_ptr<weight_intake> intake, caf::actor generator,
                             caf::actor publisher) {
  return self->state.start(std::move(options), std::move(intake), std::move(generator),
                           std::move(publisher));
}

} // namespace millrace
