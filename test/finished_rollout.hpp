#pragma once

#include "runtime/messages.hpp"

#include <utility>

namespace millrace::test {

/// A task answered at once: by one token, at version 0.
inline rollout finished(generation_task task) {
  auto r = std::move(task.so_far);
  r.tokens.push_back(2);
  r.behaviour_logp.push_back(-1);
  r.versions.push_back(0);
  r.finish = finish_reason::stop;
  return r;
}

} // namespace millrace::test
