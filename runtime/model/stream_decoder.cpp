#include "runtime/model/stream_decoder.hpp"

#include <tuple>

namespace millrace::model {

stream_decoder::stream_decoder(const tokenizer& tokens) : tokens_(&tokens) {
  std::tie(strip_, strips_left_) = tokens.stripped();
}

std::string stream_decoder::stripped_of(std::string text) {
  for (; strips_left_ > 0 && text.starts_with(strip_); --strips_left_)
    text.erase(0, strip_.size());
  if (!text.empty())
    strips_left_ = 0;
  return text;
}

std::string stream_decoder::add(std::int32_t token) {
  const auto bytes = tokens_->bytes_of(token);
  if (!bytes.empty() && !tokens_->strippable(token))
    strips_left_ = 0;
  return stripped_of(joiner_.add(bytes));
}

std::string stream_decoder::finish() { return stripped_of(joiner_.finish()); }

} // namespace millrace::model
