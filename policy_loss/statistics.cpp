#include "policy_loss/statistics.hpp"

#include <algorithm>

namespace millrace::policy_loss {

void statistics::add(std::string name, double value, double weight, merge_rule rule) {
  all_.push_back({std::move(name), value, weight, rule});
}

const statistic* statistics::find(std::string_view name) const {
  for (const auto& one : all_)
    if (one.name == name)
      return &one;
  return nullptr;
}

double statistics::get(std::string_view name, double otherwise) const {
  const auto* found = find(name);
  return found == nullptr ? otherwise : found->value;
}

void statistics::merge(const statistics& other) {
  for (const auto& theirs : other.all_) {
    auto same_name = [&](const statistic& one) { return one.name == theirs.name; };
    auto ours = std::find_if(all_.begin(), all_.end(), same_name);
    if (ours == all_.end()) {
      all_.push_back(theirs);
      continue;
    }
    // A part without tokens has nothing to say: its 0 must not enter a mean or an extreme.
    auto weight = ours->weight + theirs.weight;
    switch (ours->rule) {
      case merge_rule::sum:
        ours->value += theirs.value;
        break;
      case merge_rule::mean:
        if (weight > 0)
          ours->value = (ours->value * ours->weight + theirs.value * theirs.weight) / weight;
        break;
      case merge_rule::max:
      case merge_rule::min:
        if (ours->weight == 0)
          ours->value = theirs.value;
        else if (theirs.weight > 0)
          ours->value = ours->rule == merge_rule::max ? std::max(ours->value, theirs.value)
                                                      : std::min(ours->value, theirs.value);
        break;
    }
    ours->weight = weight;
  }
}

} // namespace millrace::policy_loss
