#include "actors/drift_watch.hpp"

#include "runtime/short_forms.hpp"

#include <algorithm>

namespace millrace {

namespace {

constexpr double half = 0.5;

double value(const std::map<std::string, double>& values, const char* key, double harmless) {
  const auto at = values.find(key);
  return at == values.end() ? harmless : at->second;
}

/// The 5th, the 10th, the 20th, ….
bool worth_telling(std::int32_t lasted) {
  auto next = drift_watch::steps_in_a_row;
  while (next < lasted)
    next *= 2;
  return next == lasted;
}

} // namespace

std::optional<std::string> drift_watch::look(const std::map<std::string, double>& values) {
  const auto sample_size = value(values, "ess", 1);
  const auto masked = value(values, "mask_fraction", 0);
  const auto clipped = value(values, "clip_fraction_positive", 0)
                       + value(values, "clip_fraction_negative", 0);
  struct sign {
    bool shows;
    const char* what;
    double now;
  };
  const std::array<sign, 3> signs{{{sample_size < half, "the effective sample size (ess) was below",
                                    sample_size},
                                   {masked > half, "the share of masked tokens was above", masked},
                                   {clipped > half, "the share of clipped tokens was above", clipped}}};
  std::string told;
  for (std::size_t i = 0; i < signs.size(); ++i) {
    lasted_[i] = signs[i].shows ? lasted_[i] + 1 : 0;
    if (worth_telling(lasted_[i]))
      told += printed("%sfor %d steps in a row %s %.1f (now %.2f)", told.empty() ? "" : ", ",
                      lasted_[i], signs[i].what, half, signs[i].now);
  }
  if (told.empty())
    return {};
  return told + ": trainer and generators have drifted apart, and little is learnt; a lower "
                "rollout.eta or trainer.lr brings them together";
}

bool drift_watch::apart() const {
  return *std::max_element(lasted_.begin(), lasted_.end()) >= steps_in_a_row;
}

} // namespace millrace
