#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace millrace::policy_loss::vectors {

/// One case as it runs in one precision: compares, and prints each miss.
class report {
public:
  report(std::string name, std::string precision, double tolerance)
    : name_(std::move(name)), precision_(std::move(precision)), tolerance_(tolerance) {}

  /// Says which variant the following comparisons are of, e.g. "packed".
  void variant(std::string_view what) { variant_ = what; }

  /// Equal within tolerance·(|want| + 0.1), elementwise; infinities exactly. `only`, where given,
  /// has a 1 for each entry that is compared.
  void compare(const std::string& field, const at::Tensor& got, const nlohmann::json& want,
               const at::Tensor& only = {});
  void compare(const std::string& field, const std::vector<double>& got, const nlohmann::json& want,
               const std::vector<double>& only = {});
  void compare(const std::string& field, double got, const nlohmann::json& want);

  void fail(const std::string& field, const std::string& got, const std::string& want);

  [[nodiscard]] bool passed() const { return passed_; }

private:
  std::string name_, precision_, variant_;
  double tolerance_;
  bool passed_ = true;
};

} // namespace millrace::policy_loss::vectors
