#include "runtime/model/answer_text.hpp"

#include <algorithm>

namespace millrace::model {

answer_text::answer_text(const tokenizer& tokens, std::vector<std::string> stops)
  : decoder_(tokens), stops_(std::move(stops)) {
  std::erase(stops_, std::string());
  for (const auto& s : stops_)
    longest_ = std::max(longest_, s.size());
}

/// Where the first stop string at or after `from` begins; npos for none.
std::size_t answer_text::first_stop(std::size_t from) const {
  auto first = std::string::npos;
  for (const auto& s : stops_)
    first = std::min(first, text_.find(s, from));
  return first;
}

/// Where the longest tail begins that a stop string begins with; the text's size for none.
std::size_t answer_text::open_begin() const {
  const auto held = longest_ > 0 ? longest_ - 1 : 0;
  auto at = std::max(passed_, text_.size() > held ? text_.size() - held : 0);
  for (; at < text_.size(); ++at)
    if (std::ranges::any_of(stops_, [&](const std::string& s) {
          return s.compare(0, text_.size() - at, text_, at) == 0;
        }))
      break;
  return at;
}

std::string answer_text::shown(bool may_stop, bool last) {
  if (may_stop) {
    if (const auto stop = first_stop(passed_); stop != std::string::npos) {
      stopped_ = true;
      text_.resize(std::max(stop, shown_));
    }
  } else {
    passed_ = text_.size();
  }
  if (!stopped_ && !last)
    passed_ = open_begin();
  const auto end = stopped_ || last ? text_.size() : passed_;
  auto part = text_.substr(shown_, end - shown_);
  shown_ = end;
  return part;
}

std::string answer_text::add(std::int32_t token, bool may_stop) {
  if (stopped_)
    return {};
  text_ += decoder_.add(token);
  return shown(may_stop, false);
}

std::string answer_text::finish() {
  if (stopped_)
    return {};
  text_ += decoder_.finish();
  return shown(true, true);
}

} // namespace millrace::model
