// Losses, without torch: each token's loss and its derivative by log θ. Aggregation, masks and KL are
// the runtime's.
//
//   "plugins": [{"path": "build/libloss.so"}],
//   "algorithm": {"loss": {"name": "capped_reinforce", "params": {"cap": 2}}}

#include <millrace/plugin.hpp>

#include <algorithm>
#include <cmath>

using namespace millrace::plugin;

namespace {

/// −sg(min(θ/μ, cap))·A·log θ: REINFORCE with truncated importance weights.
class capped_reinforce final : public loss {
public:
  explicit capped_reinforce(const parameters& p) : cap_(p.number("cap", 2)) {
    if (cap_ <= 0)
      p.refuse("cap", "more than 0");
  }
  bool needs_prox() const override { return false; }
  bool needs_behaviour() const override { return true; }

  void compute(const loss_inputs& in, const loss_outputs& out) const override {
    for (std::size_t i = 0; i < in.logp_new.size(); ++i) {
      const auto ratio = std::exp(in.logp_new[i] - in.logp_behaviour[i]);
      const auto weight = std::min(ratio, cap_);
      out.value[i] = -weight * in.advantages[i] * in.logp_new[i];
      out.gradient[i] = -weight * in.advantages[i];
      out.clipped[i] = ratio > cap_;
    }
  }

private:
  double cap_;
};

/// −A·exp(mean over the sequence of log θ/prox): a token's loss depends on all of its sequence's
/// log-probs, so the derivative is given by backward().
class sequence_ratio final : public loss {
public:
  explicit sequence_ratio(const parameters&) {}
  bool looks_at_sequences() const override { return true; }

  void compute(const loss_inputs& in, const loss_outputs& out) const override {
    each(in, [&](std::size_t i, double ratio, double) { out.value[i] = -in.advantages[i] * ratio; });
  }
  bool backward(const loss_inputs& in, std::span<const double> upstream,
                std::span<double> into) const override {
    for (std::size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
      const auto [ratio, tokens] = ratio_of(in, s);
      double sum = 0;
      for (auto i = begin(in, s); i < begin(in, s + 1); ++i)
        sum += in.mask[i] ? upstream[i] * -in.advantages[i] * ratio / tokens : 0;
      for (auto i = begin(in, s); i < begin(in, s + 1); ++i)
        into[i] = in.mask[i] ? sum : 0;
    }
    return true;
  }

private:
  static std::size_t begin(const loss_inputs& in, std::size_t s) {
    return static_cast<std::size_t>(in.cu_seqlens[s]);
  }
  static std::pair<double, double> ratio_of(const loss_inputs& in, std::size_t s) {
    double sum = 0, tokens = 0;
    for (auto i = begin(in, s); i < begin(in, s + 1); ++i)
      if (in.mask[i]) {
        sum += in.logp_new[i] - in.logp_prox[i];
        tokens += 1;
      }
    return {std::exp(sum / std::max(tokens, 1.0)), std::max(tokens, 1.0)};
  }
  template <class Function>
  static void each(const loss_inputs& in, Function&& f) {
    for (std::size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
      const auto [ratio, tokens] = ratio_of(in, s);
      for (auto i = begin(in, s); i < begin(in, s + 1); ++i)
        if (in.mask[i])
          f(i, ratio, tokens);
    }
  }
};

} // namespace

MILLRACE_PLUGIN("losses", "Two small losses") {
  add.loss<capped_reinforce>("capped_reinforce", "REINFORCE, importance weights capped at `cap`");
  add.loss<sequence_ratio>("sequence_ratio", "The sequence's geometric-mean ratio times A");
}
