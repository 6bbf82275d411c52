#pragma once

#include "runtime/config/settings.hpp"
#include "runtime/messages.hpp"

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// What a reward says about one answer.
struct verdict {
  float reward = 0;
  bool correct = false; ///< what accuracy counts, apart from how it is paid
  bool judged = true;   ///< false: the prompt has nothing that this reward can compare with
  std::string detail;   ///< one line on what was found and what was expected
};

/// Judges answers. A pure function of its parameters and its arguments; called from several threads
/// at once. Whatever the answer holds (it may not even be text), it judges and does not throw.
class reward {
public:
  virtual ~reward() = default;
  [[nodiscard]] virtual verdict judge(const prompt& question, std::string_view answer,
                                      finish_reason finish) const = 0;
};

/// The reward of this name: "numeric", "exact", "format" or "weighted"; each header says what its
/// parameters are. `where` is the JSON path of the parameters, for errors.
/// \throws user_error when the name or a parameter is wrong
[[nodiscard]] std::unique_ptr<reward> make_reward(const std::string& name,
                                                  const nlohmann::json& params
                                                  = nlohmann::json::object(),
                                                  const std::string& where = "reward.params");

/// As the configuration asks: `kind` with `params`, where `correct` and `wrong` of the section hold
/// unless the parameters say otherwise. Several rewards under "weighted" are paid as their own
/// parameters say.
[[nodiscard]] std::unique_ptr<reward> make_reward(const reward_settings& settings);

[[nodiscard]] std::vector<std::string> reward_names();

} // namespace millrace
