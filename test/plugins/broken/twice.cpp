#include <millrace/plugin.hpp>

using namespace millrace::plugin;

struct same : reward {
  explicit same(const parameters&) {}
  judgement judge(const question&, std::string_view, finish) const override { return {}; }
};

MILLRACE_PLUGIN("twice", "One name for two rewards") {
  add.reward<same>("same", "first");
  add.reward<same>("same", "second");
}
