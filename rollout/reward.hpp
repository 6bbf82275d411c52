#pragma once

#include "runtime/config/settings.hpp"
#include "runtime/messages.hpp"
#include "runtime/registry.hpp"

#include <nlohmann/json.hpp>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace millrace {

/// What a reward says about one answer.
struct verdict {
  float reward = 0;
  bool correct = false; ///< what accuracy counts, apart from how it is paid
  bool judged = true;   ///< false: the prompt has nothing that this reward can compare with
  std::string detail;   ///< one line on what was found and what was expected
  std::string failure;  ///< why the answer could not be judged at all (a program died); else empty
};

/// Judges answers. A pure function of its parameters and its arguments; called from several threads
/// at once. Whatever the answer holds (it may not even be text), it judges and does not throw.
class reward {
public:
  virtual ~reward() = default;
  [[nodiscard]] virtual verdict judge(const prompt& question, std::string_view answer,
                                      finish_reason finish) const = 0;
};

/// Makes a reward from its parameters. The text is their JSON path, for errors.
using reward_factory
  = std::function<std::unique_ptr<reward>(const nlohmann::json& params, const std::string& where)>;

/// All rewards by name: "numeric", "exact", "format", "weighted" and "program", whose headers say what
/// their parameters are, and those of plugins, which are added before any is made.
[[nodiscard]] registry<reward_factory>& rewards();

/// The reward of this name. \throws user_error when the name or a parameter is wrong
[[nodiscard]] std::unique_ptr<reward> make_reward(const std::string& name,
                                                  const nlohmann::json& params
                                                  = nlohmann::json::object(),
                                                  const std::string& where = "reward.params");

/// As the configuration asks: `kind` with `params`, where `correct` and `wrong` of the section hold
/// unless the parameters say otherwise. Several rewards under "weighted" are paid as their own
/// parameters say.
[[nodiscard]] std::unique_ptr<reward> make_reward(const reward_settings& settings);

} // namespace millrace
