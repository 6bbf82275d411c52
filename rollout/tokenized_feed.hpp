#pragma once

#include "rollout/controller.hpp"
#include "rollout/prompt_source.hpp"
#include "runtime/model/tokenizer.hpp"

#include <memory>

namespace millrace {

/// A prompt source seen through a tokenizer: what the rollout controller admits from. A prompt that
/// leaves no room for an answer (more than `max_prompt_tokens`) is passed over and counted.
class tokenized_feed : public prompt_feed {
public:
  tokenized_feed(std::shared_ptr<prompt_source> source,
                 std::shared_ptr<const model::tokenizer> tokens, std::int32_t max_prompt_tokens);

  /// \throws user_error when not one prompt of a whole epoch fits
  fed_prompt next() override;
  [[nodiscard]] nlohmann::json cursor() const override;
  void seek(const nlohmann::json& cursor) override;
  [[nodiscard]] std::int64_t passed_over() const { return passed_over_; }

private:
  std::shared_ptr<prompt_source> source_;
  std::shared_ptr<const model::tokenizer> tokens_;
  std::int32_t max_prompt_tokens_;
  std::int64_t passed_over_ = 0;
};

/// Prompt tokens as the model reads them: through its chat template where that is used, else the
/// tokenizer's start token, where it has one, and the text. The same for training, evaluation and warm-up.
std::vector<std::int32_t> prompt_tokens(const model::tokenizer& tokens, const std::string& text);

} // namespace millrace
