#include "policy_loss/diagnostics.hpp"

#include "policy_loss/layout.hpp"
#include "runtime/error.hpp"
#include "runtime/ids.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace millrace::policy_loss {

namespace {

/// Per-token inputs on the host, in fp64: diagnostics are small and run once per step.
struct host_tokens {
  layout where;
  std::vector<double> train, infer;
  std::vector<char> valid;
  std::int64_t nonfinite = 0;

  host_tokens(const at::Tensor& logp_train, const at::Tensor& logp_infer, const at::Tensor& mask,
              const std::vector<std::int32_t>& cu_seqlens)
    : where(logp_train, cu_seqlens) {
    auto copy = [&](const at::Tensor& from, const char* name) {
      auto flat = where.flat(from.detach(), at::kDouble, name).cpu().contiguous();
      const auto* data = flat.const_data_ptr<double>();
      return std::vector<double>(data, data + flat.numel());
    };
    train = copy(logp_train, "logp_train");
    infer = copy(logp_infer, "logp_infer");
    auto flat = flat_mask(where, mask, logp_train).cpu().contiguous();
    const auto* m = flat.const_data_ptr<bool>();
    valid.assign(m, m + flat.numel());
    for (std::size_t i = 0; i < valid.size(); ++i)
      if (valid[i] && !std::isfinite(train[i] - infer[i])) {
        valid[i] = 0;
        ++nonfinite;
      }
  }
};

/// exp that saturates instead of overflowing, so that sums and ratios of squares stay finite.
double bounded_exp(double x) {
  return std::exp(std::min(x, 300.0));
}

/// A packed layout of one sequence for callers whose tensors are 1-D without offsets.
std::vector<std::int32_t> whole(const at::Tensor& t) {
  return t.dim() == 1 ? std::vector<std::int32_t>{0, static_cast<std::int32_t>(t.numel())}
                      : std::vector<std::int32_t>{};
}

double mean_of(const std::vector<double>& x) {
  return x.empty() ? 0 : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

double mean_square(const std::vector<double>& x) {
  return x.empty() ? 0 : std::inner_product(x.begin(), x.end(), x.begin(), 0.0)
                           / static_cast<double>(x.size());
}

double outside(const std::vector<double>& x, double c) {
  auto out = [&](double r) { return !(r >= 1 / c && r <= c); };
  return x.empty() ? 0 : static_cast<double>(std::count_if(x.begin(), x.end(), out))
                           / static_cast<double>(x.size());
}

void add_extremes(statistics& to, const std::string& prefix, const std::vector<double>& x) {
  auto n = static_cast<double>(x.size());
  auto empty = x.empty();
  to.add(prefix + "_mean", mean_of(x), n);
  to.add(prefix + "_max", empty ? 0 : *std::max_element(x.begin(), x.end()), n, merge_rule::max);
  to.add(prefix + "_min", empty ? 0 : *std::min_element(x.begin(), x.end()), n, merge_rule::min);
}

} // namespace

double ess_fraction(std::span<const double> weights) {
  // Scaled by the largest, which changes nothing but keeps the squares finite.
  double largest = 0;
  for (auto w : weights)
    largest = std::max(largest, std::abs(w));
  if (weights.empty() || largest == 0 || !std::isfinite(largest))
    return weights.empty() ? 1 : 0;
  double sum = 0;
  double squares = 0;
  for (auto w : weights) {
    sum += w / largest;
    squares += (w / largest) * (w / largest);
  }
  return sum * sum / (static_cast<double>(weights.size()) * squares);
}

double vcpo_lr_scale(double ess_frac, double ess_ref) {
  if (!(ess_ref > 0))
    throw user_error("vcpo: ess_ref is " + std::to_string(ess_ref) + ", expected > 0");
  return std::sqrt(ess_frac / ess_ref);
}

bool areal_admission(std::int64_t admitted, std::int64_t batch, std::int64_t eta,
                     std::int64_t version) {
  if (batch < 1)
    throw user_error("admission: B is " + std::to_string(batch) + ", expected >= 1");
  if (admitted <= 0)
    return true;
  return (admitted - 1) / batch <= version + eta;
}

statistics mismatch_stats(const at::Tensor& logp_train, const at::Tensor& logp_infer,
                          const at::Tensor& mask, double cap, double mask_c) {
  host_tokens t{logp_train, logp_infer, mask, whole(logp_train)};
  std::vector<double> w, clamped, k1, k2, k3, reverse;
  double largest_difference = 0;
  for (std::size_t i = 0; i < t.valid.size(); ++i) {
    if (!t.valid[i])
      continue;
    auto d = t.train[i] - t.infer[i];
    auto ratio = bounded_exp(d);
    w.push_back(ratio);
    clamped.push_back(std::clamp(ratio, 1 / cap, cap));
    k1.push_back(-d);
    k2.push_back(d * d / 2);
    k3.push_back(std::expm1(std::min(d, 300.0)) - d);
    reverse.push_back(ratio * d - ratio + 1);
    largest_difference =
      std::max(largest_difference, std::abs(bounded_exp(t.train[i]) - bounded_exp(t.infer[i])));
  }
  auto n = static_cast<double>(w.size());
  statistics result;
  result.add("ess_frac", ess_fraction(w), n);
  auto mean = mean_of(clamped) + 1e-8;
  auto normalised = mean_square(clamped) / (mean * mean);
  result.add("ess_frac_verl_clamped", w.empty() ? 1 : 1 / normalised, n);
  result.add("kl_infer_train_k1", mean_of(k1), n);
  result.add("kl_infer_train_k2", mean_of(k2), n);
  result.add("kl_infer_train_k3", mean_of(k3), n);
  result.add("kl_train_infer_is", mean_of(reverse), n);
  result.add("chi2_token", w.empty() ? 0 : mean_square(w) - 1, n);
  add_extremes(result, "ratio", w);
  result.add("mask_frac_token", outside(w, mask_c), n);
  result.add("max_abs_prob_diff", largest_difference, n, merge_rule::max);
  result.add("nonfinite", static_cast<double>(t.nonfinite), n, merge_rule::sum);
  return result;
}

namespace {

/// Sums over one sequence.
struct sequence_sums {
  double log_ratio = 0, train = 0, infer = 0;
  std::int64_t length = 0;
};

std::vector<sequence_sums> sum_by_sequence(const host_tokens& t) {
  std::vector<sequence_sums> result(static_cast<std::size_t>(t.where.sequences()));
  const auto& offsets = t.where.offsets();
  for (std::size_t s = 0; s < result.size(); ++s)
    for (auto i = static_cast<std::size_t>(offsets[s]);
         i < static_cast<std::size_t>(offsets[s + 1]); ++i)
      if (t.valid[i]) {
        result[s].log_ratio += t.train[i] - t.infer[i];
        result[s].train += t.train[i];
        result[s].infer += t.infer[i];
        ++result[s].length;
      }
  return result;
}

at::Tensor as_tensor(const std::vector<double>& x) {
  auto t = at::empty({static_cast<std::int64_t>(x.size())}, at::kDouble);
  std::copy(x.begin(), x.end(), t.mutable_data_ptr<double>());
  return t;
}

} // namespace

sequence_stats_result sequence_stats(const at::Tensor& logp_train, const at::Tensor& logp_infer,
                                     const at::Tensor& mask,
                                     const std::vector<std::int32_t>& cu_seqlens, double cap,
                                     double mask_c) {
  host_tokens t{logp_train, logp_infer, mask, cu_seqlens};
  std::vector<double> log_ratio, ratio, geometric, lengths; // every sequence
  std::vector<double> seq, geo, clamped, train_ppl, infer_ppl, diff, abs_diff,
    ppl_ratio; // non-empty
  for (const auto& s : sum_by_sequence(t)) {
    auto n = static_cast<double>(std::max<std::int64_t>(s.length, 1));
    log_ratio.push_back(s.log_ratio);
    ratio.push_back(bounded_exp(s.log_ratio));
    geometric.push_back(bounded_exp(s.log_ratio / n));
    lengths.push_back(static_cast<double>(s.length));
    if (s.length == 0)
      continue;
    seq.push_back(ratio.back());
    geo.push_back(geometric.back());
    clamped.push_back(std::min(ratio.back(), cap));
    train_ppl.push_back(bounded_exp(-s.train / n));
    infer_ppl.push_back(bounded_exp(-s.infer / n));
    diff.push_back((s.infer - s.train) / n); // log ppl_train − log ppl_infer
    abs_diff.push_back(std::abs(diff.back()));
    ppl_ratio.push_back(bounded_exp(diff.back()));
  }
  auto n = static_cast<double>(seq.size());
  sequence_stats_result result{as_tensor(log_ratio), as_tensor(ratio), as_tensor(geometric),
                               as_tensor(lengths), {}};
  auto& stats = result.stats;
  stats.add("seq_ess_frac", ess_fraction(seq), n);
  stats.add("seq_ess_frac_clamped", ess_fraction(clamped), n);
  stats.add("geo_ess_frac", ess_fraction(geo), n);
  stats.add("chi2_seq", seq.empty() ? 0 : mean_square(seq) - 1, n);
  stats.add("chi2_geo", geo.empty() ? 0 : mean_square(geo) - 1, n);
  add_extremes(stats, "seq_ratio", seq);
  add_extremes(stats, "geo_ratio", geo);
  stats.add("train_ppl", mean_of(train_ppl), n);
  stats.add("infer_ppl", mean_of(infer_ppl), n);
  add_extremes(stats, "log_ppl_diff", diff);
  stats.add("log_ppl_abs_diff", mean_of(abs_diff), n);
  stats.add("ppl_ratio", mean_of(ppl_ratio), n);
  stats.add("mask_frac_seq", outside(seq, mask_c), n);
  stats.add("mask_frac_geo", outside(geo, mask_c), n);
  stats.add("nonfinite", static_cast<double>(t.nonfinite), n, merge_rule::sum);
  return result;
}

staleness_stats_result staleness_stats(const at::Tensor& versions, const at::Tensor& mask,
                                       const std::vector<std::int32_t>& cu_seqlens,
                                       std::int64_t current_version) {
  layout where{versions, cu_seqlens};
  auto flat = where.flat(versions, at::kLong, "versions").cpu().contiguous();
  auto flat_valid = flat_mask(where, mask, versions).cpu().contiguous();
  const auto* version = flat.const_data_ptr<std::int64_t>();
  const auto* valid = flat_valid.const_data_ptr<bool>();
  auto training_from = millrace::version{static_cast<std::int32_t>(current_version)};
  staleness_stats_result result;
  std::int64_t tokens = 0, sequences = 0, mixed = 0;
  double sum = 0;
  const auto& offsets = where.offsets();
  for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
    std::int64_t head = 0, tail = 0, found = 0;
    for (auto i = offsets[s]; i < offsets[s + 1]; ++i) {
      if (!valid[i] || version[i] < 0)
        continue;
      std::int64_t age = staleness(training_from, {static_cast<std::int32_t>(version[i])});
      head = found == 0 ? age : std::max(head, age);
      tail = found == 0 ? age : std::min(tail, age);
      ++found;
      ++result.histogram[age];
      sum += static_cast<double>(age);
    }
    result.head.push_back(head);
    result.tail.push_back(tail);
    result.span.push_back(head - tail);
    tokens += found;
    sequences += found > 0 ? 1 : 0;
    mixed += head != tail ? 1 : 0;
  }
  if (tokens > 0) {
    result.mean = sum / static_cast<double>(tokens);
    result.min = result.histogram.begin()->first;
    result.max = result.histogram.rbegin()->first;
  }
  result.mixed_version_seq_frac =
    sequences == 0 ? 0 : static_cast<double>(mixed) / static_cast<double>(sequences);
  return result;
}

} // namespace millrace::policy_loss
