#include "policy_loss/advantage.hpp"

#include "policy_loss/advantages/all.hpp"
#include "policy_loss/other_names.hpp"

namespace millrace::policy_loss {

namespace {

advantage_registry make_builtin() {
  advantage_registry result;
  result.add("grpo", advantages::grpo);
  result.add("mean_baseline", advantages::mean_baseline);
  result.add("rloo", advantages::rloo);
  result.add("reinforce_plus_plus", advantages::reinforce_plus_plus);
  result.add("reinforce_plus_plus_baseline", advantages::reinforce_plus_plus_baseline);
  result.add("gae", advantages::gae);
  result.add("vtrace", advantages::vtrace);
  return result;
}

} // namespace

const advantage_registry& builtin_advantages() {
  static const advantage_registry known = make_builtin();
  return known;
}

std::unique_ptr<advantage> make_advantage(std::string_view name, const nlohmann::json& params,
                                          const advantage_registry& known, std::string_view where) {
  if (const auto instead = advantage_called(name); !instead.empty() && !known.knows(name))
    throw user_error(std::string(where) + ": there is no advantage \"" + std::string(name) + "\": "
                     + std::string(instead));
  return known.make(name, params, where);
}

} // namespace millrace::policy_loss
