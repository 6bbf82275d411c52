#include "rollout/reward_parameters.hpp"

#include "rollout/exact_reward.hpp"
#include "rollout/format_reward.hpp"
#include "rollout/numeric_reward.hpp"
#include "rollout/program_reward.hpp"
#include "rollout/weighted_reward.hpp"
#include "runtime/config/options.hpp"

namespace millrace {

namespace {

template <class Options>
std::vector<option_row> rows_of() {
  Options options;
  option_list list;
  describe(list, options);
  return option_rows(list);
}

} // namespace

std::vector<option_row> reward_parameters(std::string_view name) {
  if (name == "numeric")
    return rows_of<numeric_options>();
  if (name == "exact")
    return rows_of<exact_options>();
  if (name == "format")
    return rows_of<answer_format>();
  if (name == "weighted")
    return rows_of<weighted_options>();
  if (name == "program")
    return rows_of<program_options>();
  return {};
}

} // namespace millrace
