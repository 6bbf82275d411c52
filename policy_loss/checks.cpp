#include "policy_loss/checks.hpp"

namespace millrace::policy_loss {

std::vector<finding> check(const algorithm_settings&) {
  return {};
}

} // namespace millrace::policy_loss
