#include "policy_loss/advantages/host.hpp"

#include "runtime/error.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace millrace::policy_loss::advantages {

namespace {

std::vector<double> to_host(const at::Tensor& flat) {
  auto host = flat.detach().to(at::kDouble).cpu().contiguous();
  const auto* data = host.const_data_ptr<double>();
  return {data, data + host.numel()};
}

at::Tensor to_tensor(const std::vector<double>& values, const at::Tensor& like) {
  auto result = at::empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), result.mutable_data_ptr<double>());
  return like.defined() ? result.to(like.device()) : result;
}

const at::Tensor& first_per_token(const advantage_inputs& in) {
  for (const auto* candidate : {&in.mask, &in.token_rewards, &in.values})
    if (candidate->defined())
      return *candidate;
  return in.log_ratio;
}

} // namespace

host_inputs::host_inputs(const advantage_inputs& in) : in_(in) {
  const auto& shaped = first_per_token(in);
  if (!shaped.defined())
    return;
  where_.emplace(shaped, in.cu_seqlens);
  auto mask = flat_mask(*where_, in.mask, shaped).cpu().contiguous();
  const auto* data = mask.const_data_ptr<bool>();
  valid_.assign(data, data + mask.numel());
}

std::size_t host_inputs::sequences() const {
  return static_cast<std::size_t>(where_ ? where_->sequences() : in_.rewards.numel());
}

std::size_t host_inputs::begin(std::size_t s) const {
  return static_cast<std::size_t>(where_->offsets()[s]);
}

std::size_t host_inputs::end(std::size_t s) const {
  return static_cast<std::size_t>(where_->offsets()[s + 1]);
}

std::vector<double> host_inputs::rewards() const {
  if (!in_.rewards.defined()) {
    if (!in_.token_rewards.defined())
      throw user_error("this advantage estimator needs rewards, and none were given");
    auto per_token = token_rewards();
    std::vector<double> sums(sequences(), 0);
    for (std::size_t s = 0; s < sums.size(); ++s)
      for (auto i = begin(s); i < end(s); ++i)
        sums[s] += per_token[i];
    return sums;
  }
  ensure(in_.rewards.dim() == 1 && static_cast<std::size_t>(in_.rewards.numel()) == sequences(),
         "rewards must have one entry per sequence");
  return to_host(in_.rewards);
}

std::vector<std::vector<std::size_t>>
host_inputs::groups(const std::vector<double>& rewards) const {
  if (!in_.group_ids.defined())
    throw user_error("this advantage estimator needs group_ids, and none were given");
  ensure(static_cast<std::size_t>(in_.group_ids.numel()) == rewards.size(),
         "group_ids must have one entry per sequence");
  auto ids = in_.group_ids.to(at::kLong).cpu().contiguous();
  const auto* id = ids.const_data_ptr<std::int64_t>();
  std::map<std::int64_t, std::vector<std::size_t>> by_id;
  for (std::size_t s = 0; s < rewards.size(); ++s)
    if (std::isfinite(rewards[s]))
      by_id[id[s]].push_back(s);
  std::vector<std::vector<std::size_t>> result;
  for (auto& [group, members] : by_id)
    result.push_back(std::move(members));
  return result;
}

std::vector<double> host_inputs::tokens(const at::Tensor& given, const char* name) const {
  if (!given.defined())
    throw user_error(std::string("this advantage estimator needs ") + name
                     + ", and none were given");
  auto values = to_host(where_->flat(given, at::kDouble, name));
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!valid_[i] || !std::isfinite(values[i]))
      values[i] = 0;
  return values;
}

std::vector<double> host_inputs::token_rewards() const {
  if (in_.token_rewards.defined())
    return tokens(in_.token_rewards, "token_rewards");
  if (!where_)
    throw user_error("this advantage estimator works per token and needs a mask or token_rewards");
  auto outcome = rewards();
  std::vector<double> result(valid_.size(), 0);
  for (std::size_t s = 0; s < outcome.size(); ++s)
    for (auto i = end(s); i-- > begin(s);)
      if (valid_[i]) {
        result[i] = std::isfinite(outcome[s]) ? outcome[s] : 0;
        break;
      }
  return result;
}

at::Tensor host_inputs::per_token(const std::vector<double>& values) const {
  return where_->restored(to_tensor(values, first_per_token(in_)));
}

at::Tensor host_inputs::per_sequence(const std::vector<double>& values) const {
  if (!where_)
    return to_tensor(values, in_.rewards);
  std::vector<double> spread(valid_.size(), 0);
  for (std::size_t s = 0; s < values.size(); ++s)
    for (auto i = begin(s); i < end(s); ++i)
      if (valid_[i])
        spread[i] = values[s];
  return per_token(spread);
}

void whiten(std::vector<double>& values, const std::vector<char>& valid, double eps) {
  double count = 0, sum = 0, squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (valid[i]) {
      ++count;
      sum += values[i];
    }
  auto mean = count > 0 ? sum / count : 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (valid[i])
      squares += (values[i] - mean) * (values[i] - mean);
  auto scale = count > 1 ? 1 / std::sqrt(squares / (count - 1) + eps) : 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = valid[i] && std::isfinite(scale) ? (values[i] - mean) * scale : 0;
}

} // namespace millrace::policy_loss::advantages
