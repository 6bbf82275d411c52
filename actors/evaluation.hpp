#pragma once

#include "rollout/controller.hpp"
#include "rollout/engine.hpp"
#include "rollout/prompt_source.hpp"
#include "rollout/reward.hpp"
#include "runtime/config/settings.hpp"

#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace millrace {

/// Accuracy on held-out prompts under one version.
struct evaluation_report {
  version v;
  double accuracy = 0; ///< share of right answers
  double reward_mean = 0;
  double length_mean = 0; ///< tokens
  double truncated = 0;   ///< share that ran into the token limit
  std::int64_t answers = 0;

  template <class I>
  friend typename I::result_type inspect(I& f, evaluation_report& x) {
    return f(x.v, x.accuracy, x.reward_mean, x.length_mean, x.truncated, x.answers);
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
  /// One decode step; false when all answers are in, or `stop` (asked before each is judged) says so.
  bool step(const std::function<bool()>& stop = {});
  [[nodiscard]] evaluation_report report() const;
  /// begin() and every step(), with these weights. progress() is below 1 after it was stopped.
  evaluation_report run(version v, std::span<const tensor_view> weights,
                        const std::function<bool()>& stop = {});
  [[nodiscard]] double progress() const;
  [[nodiscard]] const std::shared_ptr<generation::engine>& engine() const { return engine_; }

private:
  settings settings_;
  std::vector<fed_prompt> prompts_;
  std::shared_ptr<const reward> judge_;
  std::shared_ptr<generation::engine> engine_;
  std::int32_t installs_ = 0; ///< the engine's own version only ever grows
  evaluation_report sums_;
  std::size_t expected_ = 0;
};

} // namespace millrace
