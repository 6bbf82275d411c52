#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::policy_loss {

/// How values of one statistic from several micro-batches or ranks become one.
enum class merge_rule : std::uint8_t { mean, sum, max, min };

/// One scalar about a loss, e.g. `clip_frac`. A mean carries the weight (mostly the number of valid
/// tokens) that it was taken over, so that merging is exact for any split of the batch.
struct statistic {
  std::string name;
  double value = 0;
  double weight = 0;
  merge_rule rule = merge_rule::mean;
};

/// The named scalars of one evaluation, in the order in which they were made.
class statistics {
public:
  void add(std::string name, double value, double weight, merge_rule rule = merge_rule::mean);

  /// nullptr where there is none of that name.
  [[nodiscard]] const statistic* find(std::string_view name) const;

  /// The value of `name`; `otherwise` where there is none.
  [[nodiscard]] double get(std::string_view name, double otherwise = 0) const;

  /// Takes in another micro-batch's (or rank's) statistics, each by its own rule. A name unknown so
  /// far is added.
  void merge(const statistics& other);

  [[nodiscard]] const std::vector<statistic>& all() const { return all_; }

private:
  std::vector<statistic> all_;
};

} // namespace millrace::policy_loss
