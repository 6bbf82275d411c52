#include "rollout/reward.hpp"

#include "rollout/exact_reward.hpp"
#include "rollout/format_reward.hpp"
#include "rollout/numeric_reward.hpp"
#include "rollout/program_reward.hpp"
#include "rollout/weighted_reward.hpp"
#include "runtime/config/options.hpp"

namespace millrace {

namespace {

template <class Reward, class Options>
reward_factory make_with() {
  return [](const nlohmann::json& params, const std::string& where) -> std::unique_ptr<reward> {
    Options options;
    read_params(options, params, "configuration", where);
    return std::make_unique<Reward>(options);
  };
}

registry<reward_factory> built_in_rewards() {
  registry<reward_factory> r("reward");
  r.add("numeric", "The answer's number equals the reference's",
        make_with<numeric_reward, numeric_options>());
  r.add("exact", "The answer is the reference", make_with<exact_reward, exact_options>());
  r.add("format", "The answer has a certain form", make_with<format_reward, answer_format>());
  r.add("weighted", "A weighted sum of other rewards", &weighted_reward::make);
  r.add("program", "An external program, asked by JSON lines", &program_reward::make);
  return r;
}

} // namespace

registry<reward_factory>& rewards() {
  static registry<reward_factory> all = built_in_rewards();
  return all;
}

std::unique_ptr<reward> make_reward(const std::string& name, const nlohmann::json& params,
                                    const std::string& where) {
  const auto section = where.substr(0, where.rfind('.'));
  return rewards().get(name, section + ".kind")(params, where);
}

std::unique_ptr<reward> make_reward(const reward_settings& settings) {
  auto params = settings.params;
  // A sum has no pay of its own, and a plugin's reward its own parameters.
  for (auto name : {"numeric", "exact", "format"})
    if (settings.kind == name && params.is_object()) {
      params.emplace("correct", settings.correct);
      params.emplace("wrong", settings.wrong);
    }
  return make_reward(settings.kind, params);
}

} // namespace millrace
