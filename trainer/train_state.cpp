// What a checkpoint keeps of reinforcement learning.

#include "trainer/train_step.hpp"

#include "trainer/critic.hpp"

namespace millrace::trainer {

std::vector<tensor_view> reinforcement::tensors() const {
  auto views = optimizer_.state();
  for (auto& v : other_tensors())
    views.push_back(std::move(v));
  return views;
}

std::vector<tensor_view> reinforcement::other_tensors() const {
  std::vector<tensor_view> views;
  if (old_logits_)
    for (auto& v : old_logits_->tensors())
      views.push_back(std::move(v));
  if (critic_)
    for (auto& v : critic_->tensors())
      views.push_back(std::move(v));
  if (reference_)
    for (auto& v : reference_->views()) {
      v.name = "reference/" + v.name;
      views.push_back(std::move(v));
    }
  return views;
}

nlohmann::json reinforcement::state() const {
  return {{"updates", optimizer_.updates()},
          {"old_logits", old_logits_ ? old_logits_->state() : nlohmann::json::object()},
          {"critic", critic_ ? critic_->state() : nlohmann::json::object()},
          {"idle_without_advantage", idle_without_advantage_}};
}

void reinforcement::restore(const nlohmann::json& state) {
  optimizer_.set_updates(state.at("updates").get<std::int64_t>());
  idle_without_advantage_ = state.at("idle_without_advantage").get<bool>();
  if (critic_)
    critic_->restore(state.at("critic"));
  if (old_logits_)
    old_logits_->restore(state.at("old_logits"), network_);
}

} // namespace millrace::trainer
