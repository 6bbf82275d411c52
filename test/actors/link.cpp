#include "test/actors/link.hpp"

#include "actors/shell.hpp"

namespace millrace::simulation {

caf::behavior link_state::start(caf::actor target, std::shared_ptr<link_weather> weather) {
  target_ = std::move(target);
  weather_ = std::move(weather);
  self_->monitor(target_);
  self_->set_down_handler([this](const caf::down_msg& down) { self_->quit(down.reason); });
  self_->set_default_handler(
    [this](caf::scheduled_actor*, caf::message_view& view) -> caf::result<caf::message> {
      pass(view.move_content_to_message());
      return caf::delegated<caf::message>{};
    });
  return {[](caf::unit_t) {}};
}

void link_state::pass(caf::message content) {
  for (std::size_t i = 0; i < content.size(); ++i)
    if (content.match_element<caf::actor>(i)) {
      auto& stand_in = wrapped_[content.get_as<caf::actor>(i).id()];
      if (!stand_in)
        stand_in = self_->spawn(link, content.get_as<caf::actor>(i), weather_);
      content.get_mutable_as<caf::actor>(i) = stand_in;
    }
  auto& mid = self_->current_mailbox_element()->mid;
  auto original = mid;
  mid.mark_as_answered();
  if (weather_->chance(weather_->drop))
    return;
  if (weather_->chance(weather_->duplicate))
    deliver(content, false, original);
  deliver(content, !weather_->chance(weather_->lose_answer), original);
}

void link_state::deliver(const caf::message& content, bool answerable, caf::message_id mid) {
  auto when = self_->clock().now() + after(weather_->delay());
  auto sender = answerable ? self_->current_sender() : nullptr;
  if (!answerable)
    mid = caf::make_message_id(mid.is_urgent_message() ? caf::message_priority::high
                                                    : caf::message_priority::normal);
  self_->clock().schedule_message(
    when, caf::actor_cast<caf::strong_actor_ptr>(target_),
    caf::make_mailbox_element(std::move(sender), mid, {}, content));
}

caf::behavior link(caf::stateful_actor<link_state>* self, caf::actor target,
                   std::shared_ptr<link_weather> weather) {
  return self->state.start(std::move(target), std::move(weather));
}

} // namespace millrace::simulation
