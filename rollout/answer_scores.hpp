#pragma once

#include "rollout/reward.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

/// The probability that of k answers, drawn from these n of which c are right, one at least is right:
/// 1 − C(n−c, k) / C(n, k), the unbiased estimate of pass@k (Chen et al., 2021, arXiv 2107.03374).
/// 0 ≤ c ≤ n, 1 ≤ k ≤ n.
[[nodiscard]] double pass_at(std::int64_t k, std::int64_t n, std::int64_t c);

/// What came of the answers to a set of questions, `samples` to each.
class answer_scores {
public:
  answer_scores(std::size_t questions, std::int32_t samples)
    : samples_(samples), questions_(questions) {}

  void add(std::size_t question, const rollout& answer, const verdict& v);

  [[nodiscard]] std::int64_t answers() const { return answers_; }
  [[nodiscard]] std::int64_t correct() const { return correct_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  /// Could not be judged, and count as wrong.
  [[nodiscard]] std::int64_t failed() const { return failed_; }
  [[nodiscard]] const std::string& last_failure() const { return last_failure_; }
  // Means over the answers so far; 0 where there is none.
  [[nodiscard]] double accuracy() const { return mean(static_cast<double>(correct_)); }
  [[nodiscard]] double reward() const { return mean(reward_); }
  [[nodiscard]] double length() const { return mean(static_cast<double>(tokens_)); }
  [[nodiscard]] double truncated() const { return mean(static_cast<double>(truncated_)); }

  /// Questions whose answers are all in: of the others those known first would be the short ones.
  [[nodiscard]] std::int64_t complete() const;
  /// Mean of pass@k over these; 0 where there is none. 1 ≤ k ≤ samples.
  [[nodiscard]] double pass_at(std::int64_t k) const;

private:
  struct question_score {
    std::int32_t answers = 0, correct = 0;
  };
  [[nodiscard]] double mean(double sum) const {
    return answers_ > 0 ? sum / static_cast<double>(answers_) : 0;
  }

  std::int32_t samples_;
  std::vector<question_score> questions_;
  std::int64_t answers_ = 0, correct_ = 0, truncated_ = 0, tokens_ = 0, failed_ = 0;
  double reward_ = 0;
  std::string last_failure_;
};

} // namespace millrace
