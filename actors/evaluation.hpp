#pragma once

#include "rollout/answer_scores.hpp"
#include "rollout/controller.hpp"
#include "rollout/engine.hpp"
#include "rollout/prompt_source.hpp"
#include "rollout/reward.hpp"
#include "runtime/config/settings.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace millrace {

/// Accuracy on held-out prompts under one version.
struct evaluation_report {
  version v;
  double accuracy = 0; ///< share of right answers; one that could not be judged is not right
  double reward_mean = 0;
  double length_mean = 0; ///< tokens
  double truncated = 0;   ///< share that ran into the token limit
  std::int64_t answers = 0;
  std::int64_t not_judged = 0; ///< of these, how many the reward failed to judge
  std::string failure;         ///< why the last of them

  template <class I>
  friend typename I::result_type inspect(I& f, evaluation_report& x) {
    return f(x.v, x.accuracy, x.reward_mean, x.length_mean, x.truncated, x.answers,
             x.not_judged, x.failure);
  }
};

/// Answers the held-out prompts with an engine of its own, on the generators' device, a step at a time:
/// in fp32, or on a CUDA device in bf16 where the generators are not in fp32.
class evaluation {
public:
  evaluation(const settings& s, const model::model_config& config,
             std::shared_ptr<const model::tokenizer> tokens, const prompt_source& source,
             std::shared_ptr<const reward> judge);

  /// Starts over with the weights in the engine's staging buffers.
  void begin(version v);
  /// One decode step, or one finished answer judged: either may take long. False when all are.
  bool step();
  [[nodiscard]] evaluation_report report() const;
  /// begin() and every step(), with these weights, until `stop`, asked before each, says so:
  /// progress() is below 1 then.
  evaluation_report run(version v, std::span<const tensor_view> weights,
                        const std::function<bool()>& stop = {});
  [[nodiscard]] double progress() const;
  [[nodiscard]] const std::shared_ptr<generation::engine>& engine() const { return engine_; }

private:
  void judge(const rollout& r);

  settings settings_;
  std::vector<fed_prompt> prompts_;
  std::shared_ptr<const reward> judge_;
  std::shared_ptr<generation::engine> engine_;
  std::deque<rollout> finished_; ///< to be judged
  std::int32_t installs_ = 0; ///< the engine's own version only ever grows
  version version_ = no_version;
  answer_scores scores_{0, 0};
  std::size_t expected_ = 0;
};

} // namespace millrace
