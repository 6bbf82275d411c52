#pragma once

#include <cstdint>
#include <vector>

namespace millrace::trainer {

/// A prompt with a right answer, to learn from by imitation.
struct demonstration {
  std::vector<std::int32_t> tokens; ///< prompt, answer, and the end-of-sequence token to be learnt
  std::int32_t prompt_length = 0;   ///< at least 1

  template <class I>
  friend typename I::result_type inspect(I& f, demonstration& x) {
    return f(x.tokens, x.prompt_length);
  }
};

} // namespace millrace::trainer
