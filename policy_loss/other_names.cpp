#include "policy_loss/other_names.hpp"

#include <algorithm>
#include <cctype>
#include <span>
#include <string>

namespace millrace::policy_loss {

namespace {

struct other_name {
  std::string_view name; ///< in small letters, without what is neither letter nor digit
  std::string_view instead;
};

constexpr other_name no_losses[] = {
  {"grpo", "GRPO is the loss \"ppo_clip\" with the advantage \"grpo\" (conf/recipes/grpo.json)"},
  {"drgrpo", "Dr. GRPO is the loss \"ppo_clip\" with algorithm.aggregation \"fixed_length\" and the "
             "advantage \"mean_baseline\""},
  {"dapo", "DAPO is the loss \"ppo_clip\" with eps_high above eps_low, and "
           "rollout.filter_zero_variance (conf/recipes/dapo.json)"},
  {"ppo", "PPO is \"ppo_clip\"; over several versions of the weights \"decoupled_ppo\""},
  {"areal", "AReaL's is \"decoupled_ppo\" (conf/recipes/areal.json)"},
  {"llamarl", "LlamaRL's is \"aipo\" (conf/recipes/llamarl.json)"},
  {"tis", "truncated importance sampling is \"tis_ppo\" with weight_mode \"clamp\" and a weight_cap"},
  {"icepop", "IcePop is \"tis_ppo\" with disc_low and disc_high"},
  {"mis", "masked importance sampling is \"mis_decoupled\""},
  {"reinforce", "REINFORCE with importance weights is \"aipo\""},
  {"rloo", "it is an advantage: algorithm.advantage.name; as its loss, \"ppo_clip\" or \"aipo\""},
  {"reinforceplusplus", "it is an advantage, \"reinforce_plus_plus\": algorithm.advantage.name; as its "
                        "loss, \"ppo_clip\""},
  {"reinforceplusplusbaseline", "it is an advantage, \"reinforce_plus_plus_baseline\": "
                                "algorithm.advantage.name; as its loss, \"ppo_clip\""},
  {"gae", "it is an advantage: algorithm.advantage.name; as its loss, \"ppo_clip\""},
  {"vtrace", "it is an advantage: algorithm.advantage.name"},
  {"meanbaseline", "it is an advantage: algorithm.advantage.name"}};

constexpr other_name no_advantages[] = {
  {"ppo", "PPO's advantage is \"gae\", with algorithm.critic (conf/recipes/ppo_critic.json)"},
  {"dapo", "DAPO's advantage is \"grpo\" (conf/recipes/dapo.json)"},
  {"gspo", "GSPO is a loss: algorithm.loss.name; its advantage is \"grpo\" (conf/recipes/gspo.json)"},
  {"cispo", "CISPO is a loss: algorithm.loss.name; its advantage is \"grpo\""},
  {"drgrpo", "Dr. GRPO's advantage is \"mean_baseline\""},
  {"leaveoneout", "leave-one-out is \"rloo\""},
  {"reinforceplusplus", "it is \"reinforce_plus_plus\""},
  {"reinforceplusplusbaseline", "it is \"reinforce_plus_plus_baseline\""},
  {"reinforce", "REINFORCE with a batch's mean as baseline is \"reinforce_plus_plus\"; with a group's, "
                "\"mean_baseline\""}};

/// "REINFORCE++" → "reinforceplusplus".
std::string folded(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (c == '+')
      out += "plus";
    else if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view instead_of(std::string_view name, std::span<const other_name> others) {
  const auto at = std::find_if(others.begin(), others.end(),
                               [wanted = folded(name)](const other_name& o) { return o.name == wanted; });
  return at == others.end() ? std::string_view{} : at->instead;
}

} // namespace

std::string_view loss_called(std::string_view name) { return instead_of(name, no_losses); }

std::string_view advantage_called(std::string_view name) { return instead_of(name, no_advantages); }

} // namespace millrace::policy_loss
