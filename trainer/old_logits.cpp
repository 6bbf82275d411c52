#include "trainer/old_logits.hpp"

#include "policy_loss/reference/proxy.hpp"
#include "runtime/error.hpp"
#include "trainer/old_logit_average.hpp"
#include "trainer/old_logit_exact.hpp"

#include <ATen/ops/zeros.h>

namespace millrace::trainer {

at::Tensor old_logits::at_micro_batch(const micro_batch_tokens&, version) const {
  throw invariant_error("old_logits: this strategy makes its log-probs before the step");
}

bool old_logits::after_step(const model::transformer&, version, const kept_shares&) {
  return false;
}

std::shared_ptr<old_logit_worker> old_logits::worker(const model::transformer&, version) {
  return nullptr;
}

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
    result.costs.forwards = r.others.empty() ? 0 : 1;
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

/// PPO-EWMA: the log-probs of an average of the parameters over versions.
class averaged final : public old_logits {
public:
  averaged(const ewma_settings& s, const model::transformer& network) : average_(s, network) {}

  old_log_probs before_step(const old_logits_request& r) override {
    old_log_probs result;
    auto tokens = r.scorer.layout().tokens();
    result.logp = at::zeros({tokens}, at::kFloat);
    r.scorer.fill(result.logp, average_.network(), r.first_minibatch);
    r.scorer.fill(result.logp, average_.network(), r.others);
    result.served["ewma"] = tokens;
    result.costs.forwards = 1;
    result.costs.memory_bytes = average_.bytes();
    return result;
  }

  bool after_step(const model::transformer& theta, version, const kept_shares& shares) override {
    return average_.after_step(theta, shares);
  }

  std::vector<tensor_view> tensors() const override { return average_.tensors(); }
  nlohmann::json state() const override { return average_.state(); }
  void restore(const nlohmann::json& state, const model::transformer&) override {
    average_.restore(state);
  }

private:
  old_logit_average average_;
};

} // namespace

std::unique_ptr<old_logits> make_old_logits(const settings& s, const model::transformer& network,
                                            rank_mesh* mesh) {
  using policy_loss::interpolation;
  const auto& a = s.algorithm;
  switch (a.old_logits) {
    case old_logits_source::recompute: return std::make_unique<recompute>();
    case old_logits_source::behaviour: return std::make_unique<behaviour>();
    case old_logits_source::loglinear:
      return std::make_unique<interpolated>(interpolation::loglinear, a.proxy_weight);
    case old_logits_source::arithmetic:
      return std::make_unique<interpolated>(interpolation::arithmetic, a.proxy_weight);
    case old_logits_source::ewma: return std::make_unique<averaged>(a.ewma, network);
    case old_logits_source::snapshot:
    case old_logits_source::dedicated:
    case old_logits_source::interrupt: return make_exact_old_logits(s, network, mesh);
  }
  throw invariant_error("old_logits: no such strategy");
}

} // namespace millrace::trainer
