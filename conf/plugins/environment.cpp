// An environment with a tool: the model may write "calc 17+4" and end its turn; it then reads the
// result and goes on. Anything else is its final answer.
//
//   "plugins": [{"path": "build/libenvironment.so"}],
//   "rollout": {"environment": {"name": "calculator", "params": {"calls": 2}}},
//   "reward": {"kind": "environment"}

#include <millrace/plugin.hpp>

#include <charconv>

using namespace millrace::plugin;

namespace {

class calculator final : public environment {
public:
  explicit calculator(const parameters& p) : calls_(p.integer("calls", 3)) {}

  reaction react(const question& asked, std::span<const turn> turns, finish how) const override {
    const std::string_view said = turns.back().text;
    const auto calls_before = static_cast<std::int64_t>(turns.size() / 2);
    if (how == finish::stop && said.starts_with("calc ") && calls_before < calls_)
      return {.text = "=" + result(said.substr(5)) + "\n", .done = false};
    reaction r;
    r.correct = how == finish::stop && said == asked.answer;
    r.reward = r.correct ? 1 : 0;
    r.detail = std::to_string(calls_before) + " calls";
    return r;
  }

private:
  static std::string result(std::string_view sum) {
    int a = 0, b = 0;
    const auto* end = sum.data() + sum.size();
    const auto left = std::from_chars(sum.data(), end, a);
    if (left.ec != std::errc{} || left.ptr == end)
      return "?";
    const auto right = std::from_chars(left.ptr + 1, end, b);
    if (right.ec != std::errc{} || right.ptr != end)
      return "?";
    switch (*left.ptr) {
      case '+': return std::to_string(a + b);
      case '-': return std::to_string(a - b);
      case '*': return std::to_string(a * b);
      default: return "?";
    }
  }

  std::int64_t calls_;
};

} // namespace

MILLRACE_PLUGIN("calculator", "A tool for sums") {
  add.environment<calculator>("calculator", "Answers \"calc A+B\", up to `calls` times");
}
