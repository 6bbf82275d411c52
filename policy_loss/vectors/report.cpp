#include "policy_loss/vectors/report.hpp"

#include "policy_loss/vectors/values.hpp"

#include <cmath>
#include <iostream>

namespace millrace::policy_loss::vectors {

namespace {

std::string text(double x) {
  if (std::isnan(x))
    return "nan";
  if (std::isinf(x))
    return x > 0 ? "inf" : "-inf";
  return nlohmann::json(x).dump();
}

bool close(double got, double want, double tolerance) {
  if (!std::isfinite(want) || !std::isfinite(got))
    return got == want || (std::isnan(got) && std::isnan(want));
  return std::abs(got - want) <= tolerance * (std::abs(want) + 0.1);
}

} // namespace

void report::fail(const std::string& field, const std::string& got, const std::string& want) {
  passed_ = false;
  std::cout << "FAIL " << name_ << ": " << field << " (" << precision_
            << (variant_.empty() ? "" : " " + variant_) << "), got " << got << ", want " << want
            << '\n';
}

void report::compare(const std::string& field, const std::vector<double>& got,
                     const nlohmann::json& want, const std::vector<double>& only) {
  auto expected = to_values(want);
  if (got.size() != expected.flat.size()) {
    fail(field, std::to_string(got.size()) + " values",
         std::to_string(expected.flat.size()) + " values");
    return;
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    auto left_out = !only.empty() && only[i] == 0;
    if (left_out || close(got[i], expected.flat[i], tolerance_))
      continue;
    auto where = field;
    auto row = expected.shape.size() == 2 ? static_cast<std::size_t>(expected.shape[1]) : 0;
    if (row > 0)
      where += "[" + std::to_string(i / row) + "][" + std::to_string(i % row) + "]";
    else if (!expected.shape.empty())
      where += "[" + std::to_string(i) + "]";
    fail(where, text(got[i]), text(expected.flat[i]));
  }
}

void report::compare(const std::string& field, const at::Tensor& got, const nlohmann::json& want,
                     const at::Tensor& only) {
  if (!got.defined()) {
    fail(field, "nothing", want.dump());
    return;
  }
  compare(field, from_tensor(got), want,
          only.defined() ? from_tensor(only) : std::vector<double>{});
}

void report::compare(const std::string& field, double got, const nlohmann::json& want) {
  compare(field, std::vector<double>{got}, want);
}

} // namespace millrace::policy_loss::vectors
