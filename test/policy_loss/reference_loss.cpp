#include "reference_loss.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>

namespace millrace::policy_loss::testing {

namespace {

struct setting {
  const nlohmann::json& params;
  double number(const char* name, double otherwise) const { return params.value(name, otherwise); }
  std::string word(const char* name, const char* otherwise) const {
    return params.value(name, std::string(otherwise));
  }
  double low() const { return 1 - number("eps_low", number("eps", 0.2)); }
  double high() const { return 1 + number("eps_high", number("eps", 0.2)); }
};

constexpr double infinite = std::numeric_limits<double>::infinity();

using per_token = std::vector<double>;

/// The case in hand: per-token losses and what is kept.
struct work {
  const random_batch& d;
  setting p;
  const per_token& theta;
  const per_token& frozen;
  per_token loss, kept;

  std::size_t size() const { return theta.size(); }
  bool valid(std::size_t i) const { return d.mask[i] != 0; }

  double clamped(double x) const {
    auto c = p.number("log_ratio_clamp", 0);
    return c > 0 ? std::clamp(x, -c, c) : x;
  }

  /// Sum or mean over the valid tokens of the sequence that token i is in.
  double over_sequence(std::size_t i, bool mean,
                       const std::function<double(std::size_t)>& f) const {
    auto columns = static_cast<std::size_t>(d.columns);
    auto first = i / columns * columns;
    double sum = 0, count = 0;
    for (auto j = first; j < first + columns; ++j)
      if (valid(j)) {
        sum += f(j);
        ++count;
      }
    return mean ? sum / std::max(count, 1.0) : sum;
  }

  double at_level(const std::string& level, std::size_t i,
                  const std::function<double(std::size_t)>& f) const {
    return level == "token" ? f(i) : over_sequence(i, level == "geometric", f);
  }

  double ppo(double r, double a) const {
    auto l = std::max(-a * r, -a * std::clamp(r, p.low(), p.high()));
    auto c = p.number("dual_clip_c", infinite);
    return a < 0 ? std::min(l, -c * a) : l;
  }
};

double kl(const std::string& kind, double x) {
  return kind == "k1" ? x : kind == "k2" ? x * x / 2 : std::exp(-x) - 1 + x;
}

void decoupled(work& w, std::size_t i, double r1, const std::function<double(std::size_t)>& r2) {
  auto log_r2 = [&](std::size_t j) { return std::log(r2(j)); };
  auto disc = std::exp(w.at_level(w.p.word("disc_level", "token"), i, log_r2));
  if (disc < w.p.number("disc_low", 0) || disc > w.p.number("disc_high", infinite))
    w.kept[i] = 0;
  auto weight = std::exp(w.at_level(w.p.word("weight_level", "token"), i, log_r2));
  auto mode = w.p.word("weight_mode", "ratio");
  if (mode == "none")
    weight = 1;
  if (mode == "clamp")
    weight = std::min(weight, w.p.number("weight_cap", infinite));
  w.loss[i] = weight * w.ppo(r1, w.d.advantages[i]);
}

void areal(work& w, std::size_t i, double r1, const std::function<double(std::size_t)>& r2) {
  auto level = w.p.word("bw_level", "token") == "sequence" ? "geometric" : "token";
  auto weight = std::exp(w.at_level(level, i, [&](std::size_t j) { return std::log(r2(j)); }));
  auto low = w.p.number("bw_lower", 0), high = w.p.number("bw_upper", infinite);
  if (w.p.word("bw_action", "mask") == "clamp")
    weight = std::clamp(weight, low, high);
  else if (weight < low || weight > high)
    w.kept[i] = 0;
  w.loss[i] = weight * w.ppo(r1, w.d.advantages[i]);
}

double hilton(const work& w, std::size_t i, double theta, double frozen) {
  auto a = w.d.advantages[i], prox = w.d.logp_prox[i];
  auto adjusted =
    std::max(w.d.logp_behav[i], frozen - std::log(w.p.number("imp_samp_max", 100)));
  auto clipped = std::clamp(theta - prox, std::log(w.p.low()), std::log(w.p.high()));
  return std::max(-a * std::exp(theta - adjusted), -a * std::exp(prox - adjusted + clipped));
}

double proxy(const work& w, std::size_t i) {
  auto share = w.p.number("w_behav", 0.5);
  auto mu = w.d.logp_behav[i], now = w.frozen[i];
  return w.p.word("interp", "loglinear") == "loglinear"
           ? share * mu + (1 - share) * now
           : std::log(share * std::exp(mu) + (1 - share) * std::exp(now));
}

void m2po(work& w) {
  std::vector<std::pair<double, std::size_t>> candidates;
  for (std::size_t i = 0; i < w.size(); ++i) {
    auto x = w.frozen[i] - w.d.logp_behav[i], a = w.d.advantages[i];
    auto inside = (a > 0 && x > 0) || (a < 0 && x < 0);
    if (w.valid(i) && (w.p.word("scope", "all") == "all" || inside))
      candidates.emplace_back(x * x, i);
  }
  std::sort(candidates.rbegin(), candidates.rend());
  auto sum = 0.0;
  for (auto& [square, i] : candidates)
    sum += square;
  for (std::size_t k = 0; k < candidates.size(); ++k) {
    if (sum / static_cast<double>(candidates.size() - k) < w.p.number("m2_threshold", 0.04))
      break;
    w.kept[candidates[k].second] = 0;
    sum -= candidates[k].first;
  }
}

double vespo_weight(const work& w, std::size_t i, double log_w) {
  auto positive = w.d.advantages[i] >= 0;
  auto k = positive ? w.p.number("k_pos", 2) : w.p.number("k_neg", 3);
  auto lambda = positive ? w.p.number("lambda_pos", 3) : w.p.number("lambda_neg", 2);
  return std::exp(lambda + k * log_w - lambda * std::exp(log_w));
}

bool topr_positive(const work& w, std::size_t i) {
  auto rule = w.p.word("positive_rule", "advantage>0");
  auto row = i / static_cast<std::size_t>(w.d.columns);
  auto x = rule.starts_with("reward") ? w.d.rewards[row] : w.d.advantages[i];
  return rule.ends_with(">=0") ? x >= 0 : x > 0;
}

void token(const std::string& name, work& w, std::size_t i) {
  const auto& d = w.d;
  auto a = d.advantages[i];
  auto log_r1_at = [&](std::size_t j) { return w.clamped(w.theta[j] - d.logp_prox[j]); };
  auto r1 = std::exp(log_r1_at(i));
  auto r1_frozen = std::exp(w.clamped(w.frozen[i] - d.logp_prox[i]));
  auto log_r_frozen = [&](std::size_t j) { return w.clamped(w.frozen[j] - d.logp_behav[j]); };
  auto r2 = [&](std::size_t j) { return std::exp(w.clamped(d.logp_prox[j] - d.logp_behav[j])); };
  auto r = std::exp(w.clamped(w.theta[i] - d.logp_behav[i]));
  auto bounded = [&](double x) { return std::clamp(x, w.p.low(), w.p.high()); };
  auto log_theta = w.theta[i];
  if (name == "ppo_clip") {
    w.loss[i] = w.ppo(r1, a);
  } else if (name == "decoupled_ppo") {
    areal(w, i, r1, r2);
  } else if (name == "hilton_decoupled") {
    w.loss[i] = hilton(w, i, w.theta[i], w.frozen[i]);
  } else if (name == "aipo") {
    w.loss[i] = -std::min(std::exp(log_r_frozen(i)), w.p.number("rho", 2)) * a * log_theta;
  } else if (name == "aipo_clamped_ratio") {
    w.loss[i] = -std::min(r, w.p.number("rho", 2)) * a;
  } else if (name == "mis_decoupled" || name == "tis_ppo") {
    decoupled(w, i, r1, r2);
  } else if (name == "proxy_interp") {
    decoupled(w, i, std::exp(w.theta[i] - proxy(w, i)),
              [&](std::size_t j) { return std::exp(proxy(w, j) - d.logp_behav[j]); });
  } else if (name == "cispo") {
    w.loss[i] = -bounded(r1_frozen) * a * log_theta;
  } else if (name == "gspo") {
    w.loss[i] = w.ppo(std::exp(w.over_sequence(i, true, log_r1_at)), a);
  } else if (name == "topr") {
    auto level = std::exp(w.at_level(w.p.word("level", "token"), i, log_r_frozen));
    w.loss[i] = -(topr_positive(w, i) ? 1 : std::min(level, 1.0)) * a * log_theta;
  } else if (name == "m2po") {
    w.loss[i] = -r * a;
  } else if (name == "vespo") {
    w.loss[i] = -vespo_weight(w, i, w.over_sequence(i, false, log_r_frozen)) * a * log_theta;
  } else if (name == "gppo") {
    auto clipped = (a >= 0 && r1_frozen > w.p.high()) || (a < 0 && r1_frozen < w.p.low());
    w.loss[i] = clipped ? -a * bounded(r1_frozen) / r1_frozen * r1 : -a * r1;
  } else if (name == "minirl") {
    if ((a >= 0 && r1_frozen > w.p.high()) || (a < 0 && r1_frozen < w.p.low()))
      w.kept[i] = 0;
    w.loss[i] = -std::min(r2(i), w.p.number("tis_cap", 5)) * r1_frozen * a * log_theta;
  } else if (name == "kl_in_loss") {
    w.loss[i] = w.p.number("beta", 0.1)
                * kl(w.p.word("estimator", "k3"), w.clamped(w.theta[i] - d.logp_ref[i]));
  } else {
    throw std::logic_error("no reference for " + name);
  }
}

double aggregated(const work& w) {
  auto agg = w.p.word("agg", "token_mean"), rule = w.p.word("denominator", "original");
  double total = 0, tokens = 0, kept_tokens = 0, sequences = 0, kept_sequences = 0, means = 0;
  for (std::int64_t row = 0; row < w.d.rows; ++row) {
    double sum = 0, length = 0, kept = 0;
    for (std::int64_t column = 0; column < w.d.columns; ++column) {
      auto i = static_cast<std::size_t>(row * w.d.columns + column);
      if (!w.valid(i))
        continue;
      ++length;
      kept += w.kept[i];
      sum += w.kept[i] != 0 ? w.loss[i] : 0;
    }
    total += sum;
    tokens += length;
    kept_tokens += kept;
    sequences += length > 0;
    kept_sequences += kept > 0;
    means += sum / std::max(rule == "original" ? length : kept, 1.0);
  }
  auto per_sequence = std::max(rule == "kept" ? kept_sequences : sequences, 1.0);
  if (agg == "token_mean")
    return total / std::max(rule == "original" ? tokens : kept_tokens, 1.0);
  if (agg == "seq_mean_token_mean")
    return means / per_sequence;
  if (agg == "seq_mean_token_sum")
    return total / per_sequence;
  auto length = w.p.number("fixed_length", 1);
  return total / (agg == "fixed_length" ? length * static_cast<double>(w.d.rows) : length);
}

} // namespace

double reference_loss(const std::string& name, const nlohmann::json& params,
                      const random_batch& data, const std::vector<double>& theta,
                      const std::vector<double>& frozen) {
  work w{data, {params}, theta, frozen, per_token(theta.size(), 0), per_token(theta.size(), 1)};
  if (name == "m2po")
    m2po(w);
  auto beta = w.p.number("kl_beta", 0);
  for (std::size_t i = 0; i < theta.size(); ++i) {
    token(name, w, i);
    if (beta > 0)
      w.loss[i] +=
        beta * kl(w.p.word("kl_estimator", "k3"), w.clamped(theta[i] - data.logp_ref[i]));
  }
  return aggregated(w);
}

} // namespace millrace::policy_loss::testing
