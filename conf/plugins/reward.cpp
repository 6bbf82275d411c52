// A reward: right answers are paid, long ones less.
//
//   "plugins": [{"path": "build/libreward.so"}],
//   "reward": {"kind": "brief", "params": {"free": 8, "per_byte": 0.01}}

#include <millrace/plugin.hpp>

#include <algorithm>

using namespace millrace::plugin;

namespace {

class brief final : public reward {
public:
  explicit brief(const parameters& p)
    : free_(p.integer("free", 16)), per_byte_(p.number("per_byte", 0.01)) {
    if (per_byte_ < 0)
      p.refuse("per_byte", "0 or more");
  }

  judgement judge(const question& asked, std::string_view answer, finish how) const override {
    judgement j;
    j.correct = how == finish::stop && answer.find(asked.answer) != std::string_view::npos;
    const auto extra = static_cast<std::int64_t>(answer.size()) - free_;
    j.reward = j.correct ? 1 - per_byte_ * static_cast<double>(std::max<std::int64_t>(0, extra)) : 0;
    j.detail = std::to_string(answer.size()) + " bytes";
    return j;
  }

private:
  std::int64_t free_;
  double per_byte_;
};

} // namespace

MILLRACE_PLUGIN("brief", "Pays short answers better") {
  add.reward<brief>("brief", "1 for a right answer, less per_byte for each byte beyond free");
}
