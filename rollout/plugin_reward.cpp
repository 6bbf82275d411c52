#include "rollout/plugin_reward.hpp"

#include "rollout/program_reward.hpp"
#include "runtime/error.hpp"
#include "runtime/plugins/json_parameters.hpp"
#include "runtime/plugins/plugin_host.hpp"

#include <cmath>

namespace millrace {

namespace {

plugin::finish to_plugin(finish_reason r) {
  return r == finish_reason::stop ? plugin::finish::stop
                                  : r == finish_reason::length ? plugin::finish::length
                                                               : plugin::finish::cancelled;
}

/// A plugin's reward in this process.
class plugin_reward final : public reward {
public:
  plugin_reward(plugins::origin from, std::unique_ptr<plugin::reward> judge)
    : from_(std::move(from)), judge_(std::move(judge)) {}

  [[nodiscard]] verdict judge(const prompt& question, std::string_view answer,
                              finish_reason finish) const override {
    verdict v;
    try {
      auto j = judge_->judge({question.id, question.text, question.answer}, answer,
                             to_plugin(finish));
      if (!std::isfinite(j.reward))
        v.failure = from_.text() + ": judge() gave a reward that is not finite";
      else
        v = {static_cast<float>(j.reward), j.correct, j.judged, std::move(j.detail), {}};
    } catch (...) {
      v.failure = from_.text() + ": judge() threw: " + plugins::thrown_text();
    }
    v.judged = v.judged && v.failure.empty();
    return v;
  }

private:
  plugins::origin from_;
  std::unique_ptr<plugin::reward> judge_;
};

} // namespace

void add_plugin_rewards(const plugins::loaded_plugin& from) {
  for (const auto& [name, r] : from.rewards)
    rewards().add(name, r.help, [r](const nlohmann::json& params, const std::string& where) {
      return std::make_unique<plugin_reward>(r.from, plugins::make(r, params, where));
    });
}

void add_isolated_rewards(const plugins::loaded_plugin& from, const std::string& config,
                          std::int32_t processes, double timeout_s) {
  for (const auto& [name, r] : from.rewards)
    rewards().add(name, r.help,
                  [=, who = r.from](const nlohmann::json& params,
                                    const std::string& where) -> std::unique_ptr<reward> {
                    program_options o;
                    o.command = plugins::serve_command(who.file, who.name, params.dump(), where,
                                                       config);
                    o.processes = processes;
                    o.timeout_s = timeout_s;
                    auto made = std::make_unique<program_reward>(o, who.text());
                    const auto reply
                      = nlohmann::json::parse(made->ask(plugins::ready_question), nullptr, false);
                    if (reply.is_object() && reply.contains("error"))
                      throw user_error(reply["error"].get<std::string>());
                    return made;
                  });
}

} // namespace millrace
