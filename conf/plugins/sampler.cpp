// A sampler: epsilon sampling (Hewitt et al. 2022, arXiv 2210.15191): no token below a probability.
//
//   "plugins": [{"path": "build/libsampler.so"}],
//   "generator": {"sampler": {"name": "epsilon", "params": {"epsilon": 0.02}}}

#include <millrace/plugin.hpp>

#include <algorithm>
#include <cmath>

using namespace millrace::plugin;

namespace {

class epsilon final : public sampler {
public:
  explicit epsilon(const parameters& p) : least_(p.number("epsilon", 0.01)) {
    if (least_ < 0 || least_ >= 1)
      p.refuse("epsilon", "0 to below 1");
  }

  drawn_token sample(std::span<float> logits, const sampling& how, double draw,
                     std::span<const std::int32_t> forbidden) const override {
    for (auto t : forbidden)
      logits[static_cast<std::size_t>(t)] = -INFINITY;
    const auto best = std::max_element(logits.begin(), logits.end());
    if (how.temperature <= 0)
      return {static_cast<std::int32_t>(best - logits.begin()), 0};
    const double top = *best;
    const auto weight = [&](float logit) { return std::exp((logit - top) / how.temperature); };
    double all = 0, kept = 0;
    for (auto l : logits)
      all += weight(l);
    const auto keeps = [&](float l) { return weight(l) >= std::min(1.0, least_ * all); };
    for (auto l : logits)
      kept += keeps(l) ? weight(l) : 0;
    double left = draw * kept;
    auto chosen = best;
    for (auto l = logits.begin(); l != logits.end(); ++l)
      if (keeps(*l)) {
        chosen = l;
        if ((left -= weight(*l)) < 0)
          break;
      }
    return {static_cast<std::int32_t>(chosen - logits.begin()),
            static_cast<float>(std::log(weight(*chosen) / kept))};
  }

private:
  double least_;
};

} // namespace

MILLRACE_PLUGIN("epsilon", "Epsilon sampling") {
  add.sampler<epsilon>("epsilon", "No token of a probability below `epsilon`");
}
