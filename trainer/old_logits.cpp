#include "trainer/old_logits.hpp"

#include "policy_loss/reference/ewma.hpp"
#include "policy_loss/reference/proxy.hpp"
#include "runtime/error.hpp"
#include "trainer/tensor_memory.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

namespace millrace::trainer {

at::Tensor old_logits::at_micro_batch(const micro_batch_tokens&, version) const {
  throw invariant_error("old_logits: this strategy makes its log-probs before the step");
}

bool old_logits::after_step(const model::transformer&, const kept_shares&) { return false; }

void old_logits::restore(const nlohmann::json&, const model::transformer&) {}

namespace {

/// θ at the start of the step (AReaL's decoupled PPO).
class recompute final : public old_logits {
public:
  old_log_probs before_step(const old_logits_request& r) override {
    old_log_probs result;
    auto tokens = r.scorer.layout().tokens();
    result.logp = at::zeros({tokens}, at::kFloat);
    r.scorer.fill(result.logp, r.network, r.others);
    result.first_minibatch_is_current = true;
    result.served["recompute"] = tokens;
    return result;
  }
};

/// The generator's own log-probs: the loss then has a single ratio, θ/μ.
class behaviour final : public old_logits {
public:
  old_log_probs before_step(const old_logits_request& r) override {
    return {.served = {{"behaviour", r.scorer.layout().tokens()}}};
  }
  at::Tensor at_micro_batch(const micro_batch_tokens& t, version) const override {
    return t.logp_behaviour;
  }
};

/// A proxy between μ and θ as it is now: no forward pass of its own.
class interpolated final : public old_logits {
public:
  interpolated(policy_loss::interpolation how, double weight_on_behaviour)
      : how_(how), weight_(weight_on_behaviour) {}

  old_log_probs before_step(const old_logits_request& r) override {
    auto loglinear = how_ == policy_loss::interpolation::loglinear;
    return {.served = {{loglinear ? "loglinear" : "arithmetic", r.scorer.layout().tokens()}}};
  }

  at::Tensor at_micro_batch(const micro_batch_tokens& t, version from) const override {
    if (weight_ >= 0)
      return policy_loss::interpolate(how_, weight_, t.logp_behaviour, t.logp_current);
    // AReaL counts the version that the step will make as θ's, and the one it starts from prox's.
    auto proxy = policy_loss::areal_prox_approx(t.logp_behaviour, t.logp_current,
                                                t.versions.to(at::kLong), from.next().value);
    return how_ == policy_loss::interpolation::loglinear ? proxy.loglinear : proxy.linear;
  }

private:
  policy_loss::interpolation how_;
  double weight_; ///< below 0: by version
};

/// PPO-EWMA: the log-probs of an exponential average of the parameters over versions, which starts
/// anew when the loss keeps too little.
class averaged final : public old_logits {
public:
  averaged(const ewma_settings& s, const model::transformer& network)
      : average_(policy_loss::beta_from_window(s.window), {network.flat().detach()}),
        reset_(s.reset_below, s.reset_rule == ewma_reset_rule::mask
                                ? policy_loss::reset_rule::mask
                                : policy_loss::reset_rule::mask_and_clip),
        network_(network.frozen_copy()) {}

  old_log_probs before_step(const old_logits_request& r) override {
    old_log_probs result;
    auto tokens = r.scorer.layout().tokens();
    result.logp = at::zeros({tokens}, at::kFloat);
    r.scorer.fill(result.logp, network_, r.first_minibatch);
    r.scorer.fill(result.logp, network_, r.others);
    result.served["ewma"] = tokens;
    return result;
  }

  bool after_step(const model::transformer& theta, const kept_shares& shares) override {
    auto reset = reset_.after_step(shares.kept, shares.active);
    if (reset)
      average_.reset({theta.flat().detach()});
    else
      average_.update({theta.flat().detach()});
    take_over();
    return reset;
  }

  std::vector<tensor_view> tensors() const override {
    // The average's own memory is one flat tensor; the network's copy of it has names.
    auto views = network_.views();
    for (auto& v : views)
      v.name = "ewma/" + v.name;
    return views;
  }

  nlohmann::json state() const override { return {{"total_weight", average_.total_weight()}}; }

  void restore(const nlohmann::json& state, const model::transformer&) override {
    average_.restore(state.at("total_weight").get<double>(), {network_.flat().detach().clone()});
  }

private:
  void take_over() {
    at::NoGradGuard no_grad;
    network_.flat().detach().copy_(average_.average().front());
  }

  policy_loss::ewma average_;
  policy_loss::ewma_auto_reset reset_;
  model::transformer network_;
};

} // namespace

std::unique_ptr<old_logits> make_old_logits(const algorithm_settings& settings,
                                            const model::transformer& network) {
  using policy_loss::interpolation;
  switch (settings.old_logits) {
    case old_logits_source::recompute: return std::make_unique<recompute>();
    case old_logits_source::behaviour: return std::make_unique<behaviour>();
    case old_logits_source::loglinear:
      return std::make_unique<interpolated>(interpolation::loglinear, settings.proxy_weight);
    case old_logits_source::arithmetic:
      return std::make_unique<interpolated>(interpolation::arithmetic, settings.proxy_weight);
    case old_logits_source::ewma: return std::make_unique<averaged>(settings.ewma, network);
  }
  throw invariant_error("old_logits: no such strategy");
}

} // namespace millrace::trainer
