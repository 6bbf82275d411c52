#include "policy_loss/vectors/values.hpp"

#include "runtime/error.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

namespace millrace::policy_loss::vectors {

namespace {

void append(const nlohmann::json& array, std::size_t depth, values& to) {
  if (!array.is_array()) {
    if (depth != to.shape.size())
      throw user_error("ragged array");
    to.flat.push_back(to_number(array));
    return;
  }
  auto length = static_cast<std::int64_t>(array.size());
  if (to.shape.size() == depth && to.flat.empty())
    to.shape.push_back(length);
  if (to.shape.size() <= depth || to.shape[depth] != length)
    throw user_error("ragged array");
  for (const auto& entry : array)
    append(entry, depth + 1, to);
}

} // namespace

double to_number(const nlohmann::json& number) {
  if (number.is_number())
    return number.get<double>();
  if (number.is_boolean())
    return number.get<bool>() ? 1 : 0;
  if (number == "inf")
    return std::numeric_limits<double>::infinity();
  if (number == "-inf")
    return -std::numeric_limits<double>::infinity();
  if (number == "nan")
    return std::numeric_limits<double>::quiet_NaN();
  throw user_error("found " + number.dump() + ", expected a number");
}

values to_values(const nlohmann::json& array) {
  values result;
  append(array, 0, result);
  return result;
}

at::Tensor to_tensor(const nlohmann::json& array, at::ScalarType type) {
  auto from = to_values(array);
  auto tensor = at::empty(from.shape, at::kDouble);
  std::copy(from.flat.begin(), from.flat.end(), tensor.mutable_data_ptr<double>());
  return tensor.to(type);
}

std::vector<double> from_tensor(const at::Tensor& tensor) {
  auto host = tensor.detach().to(at::kDouble).cpu().contiguous();
  const auto* data = host.const_data_ptr<double>();
  return {data, data + host.numel()};
}

} // namespace millrace::policy_loss::vectors
