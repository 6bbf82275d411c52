#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::policy_loss::vectors {

/// An array of the case files, of any depth, flattened; "inf", "-inf" and "nan" are numbers.
struct values {
  std::vector<std::int64_t> shape;
  std::vector<double> flat;
};

/// @throws millrace::user_error for anything else than numbers, and for ragged rows
values to_values(const nlohmann::json& array);
double to_number(const nlohmann::json& number);

at::Tensor to_tensor(const nlohmann::json& array, at::ScalarType type);
std::vector<double> from_tensor(const at::Tensor& tensor);

} // namespace millrace::policy_loss::vectors
