#include "rollout/answer_scores.hpp"

#include "runtime/readable_text.hpp"

#include <algorithm>

namespace millrace {

double pass_at(std::int64_t k, std::int64_t n, std::int64_t c) {
  if (n - c < k)
    return 1;
  double all_wrong = 1; // the quotient of the binomials, factor by factor
  for (auto i = n - c + 1; i <= n; ++i)
    all_wrong *= 1 - static_cast<double>(k) / static_cast<double>(i);
  return 1 - all_wrong;
}

void answer_scores::add(std::size_t question, const rollout& answer, const verdict& v) {
  auto& q = questions_.at(question);
  ++q.answers;
  ++answers_;
  q.correct += v.correct ? 1 : 0;
  correct_ += v.correct ? 1 : 0;
  reward_ += v.reward;
  tokens_ += answer.generated();
  truncated_ += answer.finish == finish_reason::length ? 1 : 0;
  if (!v.failure.empty()) {
    ++failed_;
    last_failure_ = readable(v.failure, 1000); // of a plugin, it may be
  }
}

std::int64_t answer_scores::complete() const {
  return std::count_if(questions_.begin(), questions_.end(),
                       [this](const question_score& q) { return q.answers == samples_; });
}

double answer_scores::pass_at(std::int64_t k) const {
  double sum = 0;
  for (const auto& q : questions_)
    if (q.answers == samples_)
      sum += millrace::pass_at(k, q.answers, q.correct);
  return sum / static_cast<double>(std::max<std::int64_t>(1, complete()));
}

} // namespace millrace
