#pragma once

#include "runtime/model/json_place.hpp"

#include <functional>
#include <string>
#include <vector>

namespace millrace::model {

/// tokenizer.json's `normalizer`: NFC, NFD, NFKC, NFKD, Prepend, Replace and sequences of them.
class text_normalizer {
public:
  text_normalizer() = default; ///< leaves text as it is
  /// Throws user_error naming what is not supported.
  explicit text_normalizer(const json_place& place);

  [[nodiscard]] bool empty() const { return steps_.empty(); }
  /// `text` is UTF-8.
  [[nodiscard]] std::string apply(std::string text) const;

private:
  void add(const json_place& place, int depth);

  std::vector<std::function<std::string(std::string)>> steps_;
};

} // namespace millrace::model
