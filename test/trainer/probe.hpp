#pragma once

// A loss that a test looks through, and one step of training with it.

#include "policy_loss/loss.hpp"
#include "test/trainer/toy.hpp"
#include "trainer/train_step.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace millrace::toy {

using namespace trainer;

/// Passes everything on to a built-in loss, and lets a test see or change what goes through.
class probe final : public policy_loss::loss {
public:
  using seen = std::function<void(const policy_loss::inputs&, policy_loss::outputs&)>;
  probe(std::string inner, seen look)
      : inner_(policy_loss::make_loss(inner, {{"agg", "token_mean"}})), look_(std::move(look)) {}
  std::string_view name() const override { return "probe"; }
  policy_loss::requirements needs() const override { return inner_->needs(); }
  policy_loss::outputs compute(const policy_loss::inputs& in) const override {
    auto out = inner_->compute(in);
    look_(in, out);
    return out;
  }

private:
  std::unique_ptr<policy_loss::loss> inner_;
  seen look_;
};

inline registries with_probe(probe::seen look, const std::string& inner = "decoupled_ppo") {
  registries known;
  known.losses.add("probe", [=](policy_loss::param_reader& params) {
    params.choice("agg", {"token_mean"}, 0, "");
    return std::make_unique<probe>(inner, look);
  });
  return known;
}

inline settings probing(settings s = tiny_settings()) {
  s.algorithm.loss = {"probe"};
  return s;
}

inline std::vector<float> after_one_step(const settings& s, const std::vector<scored_group>& groups,
                                  version from, step_statistics* stats = nullptr,
                                  const registries& known = {}) {
  auto network = tiny_network();
  reinforcement trainer(network, s, known);
  auto result = trainer.step(from, groups);
  if (stats)
    *stats = result;
  return parameters(network.views());
}

} // namespace millrace::toy
