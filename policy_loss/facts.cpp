#include "policy_loss/checks.hpp"

#include "runtime/config/settings.hpp"

namespace millrace::policy_loss {

namespace {

template <class Enum>
std::string name_of(Enum value) {
  return std::string(names(value)[static_cast<std::size_t>(value)]);
}

} // namespace

algorithm_facts facts_of(const millrace::settings& s) {
  const auto& a = s.algorithm;
  algorithm_facts f;
  f.loss = a.loss.name;
  f.loss_params = a.loss.params;
  f.advantage = a.advantage.name;
  f.old_logits = name_of(a.old_logits);
  f.aggregation = name_of(a.aggregation);
  (a.kl.place == kl_place::loss ? f.kl_in_loss : f.kl_in_reward) = a.kl.coefficient;
  f.kl_estimator = name_of(a.kl.estimator);
  f.has_reference = a.kl.reference != kl_reference::none;
  f.has_critic = a.critic.kind != critic_kind::none;
  f.eta = s.rollout.eta;
  f.group_size = s.rollout.group_size;
  f.minibatches = s.trainer.minibatches;
  f.epochs = s.trainer.epochs;
  f.temperature = s.sampling.temperature;
  f.train_temperature = s.sampling.temperature;
  f.top_p = s.sampling.top_p;
  f.top_k = s.sampling.top_k;
  f.min_p = s.sampling.min_p;
  f.ewma_reset_below = a.ewma.reset_below;
  f.ewma_reset_rule = name_of(a.ewma.reset_rule);
  f.proxy_weight = a.proxy_weight;
  return f;
}

} // namespace millrace::policy_loss
