#include "random_batch.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace millrace::policy_loss::testing {

namespace {

// Tensors here are tiny: on a busy machine a second thread is only waited for.
[[maybe_unused]] const bool one_thread = [] {
  at::set_num_threads(1);
  return true;
}();

} // namespace

random_batch::random_batch(std::mt19937_64& random, std::int64_t rows_, std::int64_t columns_,
                           double spread)
  : rows(rows_), columns(columns_) {
  std::normal_distribution<double> near{0, spread}, any{0, 1};
  std::uniform_real_distribution<double> where{-3, -0.05};
  std::uniform_int_distribution<std::int64_t> length{1, columns};
  std::bernoulli_distribution hole{0.1};
  for (std::int64_t row = 0; row < rows; ++row) {
    lengths.push_back(length(random));
    auto row_advantage = any(random);
    rewards.push_back(any(random));
    for (std::int64_t column = 0; column < columns; ++column) {
      auto behav = where(random);
      logp_behav.push_back(behav);
      logp_prox.push_back(behav + near(random));
      logp_new.push_back(logp_prox.back() + near(random));
      logp_ref.push_back(behav + near(random));
      advantages.push_back(row_advantage + 0.2 * any(random));
      mask.push_back(column < lengths.back() && !hole(random) ? 1 : 0);
    }
  }
  if (rows > 2) // one sequence has no valid token at all
    for (std::int64_t column = 0; column < columns; ++column)
      mask[static_cast<std::size_t>(columns + column)] = 0;
}

namespace {

template <class T>
at::Tensor tensor(const std::vector<T>& from, at::ScalarType type) {
  auto result = at::empty({static_cast<std::int64_t>(from.size())}, at::kDouble);
  std::copy(from.begin(), from.end(), result.mutable_data_ptr<double>());
  return result.to(type);
}

} // namespace

inputs random_batch::padded(at::ScalarType type) const {
  auto shaped = [&](const std::vector<double>& x) {
    return tensor(x, type).reshape({rows, columns});
  };
  inputs in;
  in.logp_new = shaped(logp_new);
  in.logp_prox = shaped(logp_prox);
  in.logp_behav = shaped(logp_behav);
  in.logp_ref = shaped(logp_ref);
  in.advantages = shaped(advantages);
  in.rewards = tensor(rewards, type);
  in.mask = tensor(mask, at::kBool).reshape({rows, columns});
  return in;
}

inputs random_batch::packed(at::ScalarType type) const {
  return packed_rows(0, rows, type);
}

inputs random_batch::packed_rows(std::int64_t first, std::int64_t last, at::ScalarType type) const {
  std::vector<std::int64_t> places;
  inputs in;
  in.cu_seqlens.push_back(0);
  for (auto row = first; row < last; ++row) {
    for (std::int64_t column = 0; column < lengths[static_cast<std::size_t>(row)]; ++column)
      places.push_back(row * columns + column);
    in.cu_seqlens.push_back(static_cast<std::int32_t>(places.size()));
  }
  auto index = tensor(places, at::kLong);
  auto pick = [&](const std::vector<double>& x) { return tensor(x, type).index_select(0, index); };
  in.logp_new = pick(logp_new);
  in.logp_prox = pick(logp_prox);
  in.logp_behav = pick(logp_behav);
  in.logp_ref = pick(logp_ref);
  in.advantages = pick(advantages);
  in.rewards = tensor(rewards, type).narrow(0, first, last - first);
  in.mask = tensor(mask, at::kBool).index_select(0, index);
  return in;
}

std::vector<example> examples() {
  return {
    {"ppo_clip", {{"eps", 0.2}}},
    {"ppo_clip", {{"eps_low", 0.2}, {"eps_high", 0.28}, {"dual_clip_c", 1.5}, {"kl_beta", 0.04}}},
    {"ppo_clip",
     {{"eps", 0.3}, {"kl_beta", 0.1}, {"kl_estimator", "k2"}, {"log_ratio_clamp", 0.4}}},
    {"decoupled_ppo", {{"eps", 0.2}}},
    {"decoupled_ppo", {{"bw_upper", 1.3}, {"bw_lower", 0.8}}},
    {"decoupled_ppo", {{"bw_upper", 1.1}, {"bw_lower", 0.9}, {"bw_action", "clamp"}}},
    {"decoupled_ppo", {{"bw_upper", 1.1}, {"bw_level", "sequence"}, {"dual_clip_c", 1.4}}},
    {"decoupled_ppo", {{"bw_upper", 1.05}, {"bw_level", "sequence"}, {"bw_action", "clamp"}}},
    {"hilton_decoupled", {{"eps", 0.2}, {"imp_samp_max", 1.2}}},
    {"aipo", {{"rho", 1.2}}},
    {"aipo_clamped_ratio", {{"rho", 1.2}}},
    {"mis_decoupled", {{"disc_low", 0.8}, {"disc_high", 1.3}}},
    {"mis_decoupled", {{"disc_low", 0.7}, {"disc_high", 1.4}, {"weight_mode", "none"}}},
    {"proxy_interp",
     {{"interp", "loglinear"}, {"w_behav", 0.4}, {"eps", 0.15}, {"disc_high", 1.3}}},
    {"proxy_interp",
     {{"interp", "arithmetic"}, {"w_behav", 0.3}, {"eps", 0.15}, {"disc_low", 0.7}}},
    {"tis_ppo", {{"weight_mode", "clamp"}, {"weight_cap", 1.1}}},
    {"tis_ppo", {{"weight_level", "sequence"}, {"disc_level", "sequence"}, {"disc_high", 2}}},
    {"tis_ppo", {{"weight_level", "geometric"}, {"disc_level", "geometric"}, {"disc_low", 0.9}}},
    {"tis_ppo",
     {{"weight_level", "sequence"},
      {"weight_mode", "clamp"},
      {"weight_cap", 1.5},
      {"disc_level", "token"},
      {"disc_low", 0.6},
      {"disc_high", 1.7}}},
    {"cispo", {{"eps_low", 1.0}, {"eps_high", 0.1}}},
    {"gspo", {{"eps_low", 0.05}, {"eps_high", 0.06}}},
    {"topr", {{"level", "token"}}},
    {"topr", {{"level", "sequence"}, {"positive_rule", "reward>=0"}}},
    {"topr", {{"level", "geometric"}, {"positive_rule", "reward>0"}}},
    {"m2po", {{"m2_threshold", 0.1}}},
    {"m2po", {{"m2_threshold", 0.1}, {"scope", "trust_region"}}},
    {"vespo", nlohmann::json::object()},
    {"gppo", {{"eps_low", 0.2}, {"eps_high", 0.28}}},
    {"minirl", {{"eps_low", 0.2}, {"eps_high", 0.27}, {"tis_cap", 1.2}}},
    {"kl_in_loss", {{"estimator", "k1"}, {"beta", 0.1}}},
    {"kl_in_loss", {{"estimator", "k2"}, {"beta", 0.1}}},
    {"kl_in_loss", {{"estimator", "k3"}, {"beta", 0.1}}},
  };
}

std::vector<nlohmann::json> aggregations() {
  std::vector<nlohmann::json> result;
  for (const char* denominator : {"original", "kept", "roll_hybrid"})
    for (const char* agg : {"token_mean", "seq_mean_token_mean", "seq_mean_token_sum",
                            "fixed_length", "sum_over_const"}) {
      nlohmann::json one{{"agg", agg}, {"denominator", denominator}};
      if (std::string(agg) == "fixed_length" || std::string(agg) == "sum_over_const")
        one["fixed_length"] = 7;
      result.push_back(one);
    }
  return result;
}

std::vector<nlohmann::json> some_aggregations(std::size_t k) {
  auto all = aggregations();
  std::vector<nlohmann::json> result;
  for (auto i = k % 3; i < all.size(); i += 3)
    result.push_back(all[i]);
  return result;
}

evaluated evaluate(const loss& method, const inputs& in) {
  auto leaf = in;
  leaf.logp_new = in.logp_new.detach().clone().set_requires_grad(true);
  evaluated result{method.compute(leaf), {}};
  result.out.loss.backward();
  result.gradient = leaf.logp_new.grad();
  if (!result.gradient.defined())
    result.gradient = at::zeros_like(leaf.logp_new);
  return result;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

bool has_nan(const at::Tensor& t) {
  return at::isnan(t).any().item<bool>();
}

} // namespace millrace::policy_loss::testing
