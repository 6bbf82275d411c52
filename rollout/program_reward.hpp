#pragma once

#include "rollout/reward.hpp"
#include "runtime/plugins/child_pool.hpp"

#include <string>
#include <vector>

namespace millrace {

class option_list;

/// Parameters of "program".
struct program_options {
  std::vector<std::string> command; ///< program and arguments
  std::int32_t processes = 2;
  double timeout_s = 5;
};
void describe(option_list& v, program_options& o);

/// An external program that judges answers: a pool of processes that take one JSON object a line,
///
///     {"id": 17, "question": "1+1=", "reference": "2", "answer": "2", "finish": "stop"}
///
/// and answer each with one, before they get the next:
///
///     {"reward": 1.0, "correct": true}            and, optional, "judged": false, "detail": "text"
///     {"error": "why this answer can't be judged"}
///
/// Without "correct", a reward above 0 counts as correct. A process that dies, is late or writes
/// something else fails that one answer, with the reason, and is replaced (child_pool).
class program_reward final : public reward {
public:
  /// `who` begins the texts of failures: "program judge.py".
  program_reward(const program_options& options, std::string who);

  static std::unique_ptr<reward> make(const nlohmann::json& params, const std::string& where);

  [[nodiscard]] verdict judge(const prompt& question, std::string_view answer,
                              finish_reason finish) const override;

  /// One question of another form, as JSON text, for a program that knows it. \throws user_error
  [[nodiscard]] std::string ask(const std::string& line) const;

private:
  std::string who_;
  std::unique_ptr<plugins::child_pool> pool_;
};

} // namespace millrace
