// An advantage estimator: where in its group an answer ranks, from −1 to 1, whatever the rewards'
// scale; ties share their mean rank.
//
//   "plugins": [{"path": "build/libadvantage.so"}],
//   "algorithm": {"advantage": {"name": "rank"}}

#include <millrace/plugin.hpp>

using namespace millrace::plugin;

namespace {

class rank final : public advantage {
public:
  explicit rank(const parameters&) {}

  advantages estimate(std::span<const double> rewards,
                      std::span<const std::int32_t>) const override {
    advantages out;
    const auto n = static_cast<double>(rewards.size());
    for (auto own : rewards) {
      double below = 0, above = 0;
      for (auto other : rewards) {
        below += other < own;
        above += other > own;
      }
      out.values.push_back(n > 1 ? (below - above) / (n - 1) : 0);
    }
    return out;
  }
};

} // namespace

MILLRACE_PLUGIN("rank", "Advantages from ranks") {
  add.advantage<rank>("rank", "The answer's rank in its group, from -1 to 1");
}
