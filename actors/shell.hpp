#pragma once

// What every actor needs beside its work. The shells hold no decision logic: they carry messages to
// it, and see to it that nothing waits without an end and nothing dies without a word.

#include <caf/all.hpp>

#include <chrono>
#include <cmath>
#include <exception>
#include <functional>

namespace millrace {

/// An exception in a handler ends the actor with its text as the reason, for whoever monitors it.
/// (CAF's own handler ends it silently.)
inline void report_exceptions(caf::scheduled_actor* self) {
  self->set_exception_handler([](std::exception_ptr& thrown) -> caf::error {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      return caf::make_error(caf::sec::runtime_error, std::string(e.what()));
    } catch (...) {
      return caf::make_error(caf::sec::runtime_error, std::string("unknown exception"));
    }
  });
}

/// What an error says, without CAF's rendering around it.
inline std::string text_of(const caf::error& e, const caf::actor_system& system) {
  if (!e) // an actor that ended in good order; of no category, which CAF can't be asked for
    return "it ended";
  if (e.category() == caf::atom("system")
      && e.code() == static_cast<std::uint8_t>(caf::sec::runtime_error)
      && e.context().match_elements<std::string>())
    return e.context().get_as<std::string>(0);
  if (e.category() == caf::atom("system"))
    switch (static_cast<caf::sec>(e.code())) {
    case caf::sec::cannot_connect_to_node:
      return "nobody listens there";
    case caf::sec::cannot_open_port:
      return "the port can't be had";
    case caf::sec::connection_timeout:
    case caf::sec::request_timeout:
      return "no answer in time";
    case caf::sec::request_receiver_down:
      return "it ended before it answered";
    default:
      break;
    }
  if (e.category() == caf::atom("exit"))
    switch (static_cast<caf::exit_reason>(e.code())) {
    case caf::exit_reason::remote_link_unreachable:
      return "its connection broke";
    case caf::exit_reason::user_shutdown:
      return "it was ended";
    default:
      break;
    }
  return system.render(e);
}

/// Seconds on the actor system's clock, which the simulator moves by hand.
inline double now_s(const caf::local_actor* self) {
  return std::chrono::duration<double>(self->clock().now().time_since_epoch()).count();
}

/// A time-out for a request. (As caf::duration: with a chrono one the priority would be lost.)
inline caf::duration within(double seconds) {
  return {caf::time_unit::milliseconds, static_cast<std::uint32_t>(std::ceil(seconds * 1e3))};
}

/// A delay for delayed_send.
inline std::chrono::microseconds after(double seconds) {
  return std::chrono::microseconds{static_cast<std::int64_t>(seconds * 1e6)};
}

/// Sends a message again and again until it is answered. The receiver must take a second copy for
/// what it is. Ends when the receiver is down (who monitors it knows), or when `still_wanted` says
/// no. `answered` is called once, with the answer.
inline void insist(caf::event_based_actor* self, const caf::actor& to, double every_s,
                   caf::message content, std::function<bool()> still_wanted = {},
                   std::function<void()> answered = {}) {
  self->request(to, within(every_s), content)
    .then(
      [=] {
        if (answered)
          answered();
      },
      [=](const caf::error& e) {
        if (e != caf::sec::request_receiver_down && (!still_wanted || still_wanted()))
          insist(self, to, every_s, content, still_wanted, answered);
      });
}

} // namespace millrace
