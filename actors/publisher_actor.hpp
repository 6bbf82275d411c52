#pragma once

#include "actors/introspection.hpp"
#include "actors/shell.hpp"
#include "runtime/metrics/catalogue.hpp"

#include <map>
#include <memory>
#include <string>

namespace millrace {

/// The publishing side of weight sync: tells receivers of each new version, and keeps their leases.
/// `Publisher` is weightsync::publisher, or in the simulator its state machine alone.
///
/// Takes: (receiver_joined_atom, receiver's name, actor); weights_published from the trainer;
/// lease_request → lease_reply; lease_update. A receiver that dies gives up its leases.
template <class Publisher>
class publisher_state {
public:
  static inline const char* name = "publisher";

  publisher_state(caf::event_based_actor* self) : self_(self) {
  }

  caf::behavior start(std::shared_ptr<Publisher> publisher, double notice_timeout_s,
                      const std::string& called) {
    report_exceptions(self_);
    publisher_ = std::move(publisher);
    notice_timeout_s_ = notice_timeout_s;
    seen_ = {self_, "publisher", called};
    seen_.waiting("trainer", "the first weights");
    self_->set_down_handler([this](const caf::down_msg& down) { forget(down.source); });
    self_->delayed_send(self_, after(1), tick_atom::value);
    return {
      [this](receiver_joined_atom, const std::string& receiver, const caf::actor& handle) {
        auto& known = receivers_[receiver];
        if (known != handle)
          self_->monitor(handle);
        known = handle;
        if (latest_.v >= version{0})
          notify(handle);
      },
      [this](const weights_published& p) {
        if (p.v <= latest_.v)
          return;
        latest_ = p;
        seen_.metrics().add(metrics::versions_published);
        seen_.working("serving " + to_string(p.v));
        for (const auto& [receiver, handle] : receivers_)
          notify(handle);
      },
      [this](const lease_request& r) -> lease_reply {
        auto l = publisher_->acquire(r.receiver, r.v, now_s(self_));
        show();
        return {l.id, l.number};
      },
      [this](const lease_update& u) {
        if (u.done)
          publisher_->release(u.lease, now_s(self_));
        else
          publisher_->renew(u.lease, now_s(self_));
        show();
      },
      [this](tick_atom) {
        self_->delayed_send(self_, after(1), tick_atom::value);
        auto expired = publisher_->tick(now_s(self_)).size();
        seen_.metrics().add(metrics::leases_expired, static_cast<double>(expired));
        show();
      },
      answer_introspection(seen_),
    };
  }

private:
  void notify(const caf::actor& receiver) {
    insist(self_, receiver, notice_timeout_s_, caf::make_message(latest_),
           [this, v = latest_.v] { return latest_.v == v; });
  }

  void show() {
    std::size_t open = 0;
    if constexpr (requires { publisher_->active_leases(); })
      open = publisher_->active_leases();
    else
      open = publisher_->leases().size();
    seen_.metrics().set(metrics::leases_open, static_cast<double>(open));
  }

  void forget(const caf::actor_addr& source) {
    std::erase_if(receivers_, [&](const auto& entry) {
      if (entry.second.address() != source)
        return false;
      publisher_->forget(entry.first, now_s(self_));
      return true;
    });
  }

  caf::event_based_actor* self_;
  std::shared_ptr<Publisher> publisher_;
  double notice_timeout_s_ = 5;
  presence seen_;
  std::map<std::string, caf::actor> receivers_;
  weights_published latest_{no_version, {}, 0};
};

template <class Publisher>
caf::behavior publisher_actor(caf::stateful_actor<publisher_state<Publisher>>* self,
                              std::shared_ptr<Publisher> publisher, double notice_timeout_s,
                              const std::string& called) {
  return self->state.start(std::move(publisher), notice_timeout_s, called);
}

} // namespace millrace
