#include "rollout/tokenized_feed.hpp"

#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

namespace millrace {

std::vector<std::int32_t> prompt_tokens(const model::tokenizer& tokens, const std::string& text) {
  return tokens.encode_prompt(text);
}

tokenized_feed::tokenized_feed(std::shared_ptr<prompt_source> source,
                               std::shared_ptr<const model::tokenizer> tokens,
                               std::int32_t max_prompt_tokens)
  : source_(std::move(source)), tokens_(std::move(tokens)),
    max_prompt_tokens_(max_prompt_tokens) {
}

fed_prompt tokenized_feed::next() {
  std::size_t shortest = 0;
  for (std::int64_t tried = 0; tried < source_->epoch_size(); ++tried) {
    auto p = source_->next();
    auto ids = prompt_tokens(*tokens_, p.text);
    if (static_cast<std::int64_t>(ids.size()) <= max_prompt_tokens_)
      return {std::move(p), std::move(ids)};
    ++passed_over_;
    shortest = shortest == 0 ? ids.size() : std::min(shortest, ids.size());
  }
  throw user_error("data: no prompt leaves room for an answer: the shortest has "
                   + std::to_string(shortest) + " tokens, and the model's context less "
                   "sampling.max_tokens is " + std::to_string(max_prompt_tokens_)
                   + "; lower sampling.max_tokens, or take a model with a longer context");
}

nlohmann::json tokenized_feed::cursor() const {
  return source_->cursor();
}

void tokenized_feed::seek(const nlohmann::json& cursor) {
  source_->seek(cursor);
}

} // namespace millrace
