// Everything throws, each time another type.
#include <millrace/plugin.hpp>

#include <stdexcept>

using namespace millrace::plugin;

struct own_type {};

struct thrower : reward, prompt_source, stream_actor {
  judgement judge(const question&, std::string_view, finish) const override { throw own_type{}; }
  std::int64_t size() const override { return 5; }
  question at(std::int64_t) const override { throw "not today"; }
  std::string fingerprint() const override { return "x"; }
  std::string on_group(const scored_group&) override { throw std::string("no group pleases me"); }
};

MILLRACE_PLUGIN("throwing", "Throws") {
  add.add_reward("factory_throws", "", [](const parameters&) -> std::unique_ptr<reward> {
    throw 42;
  });
  add.add_reward("factory_gives_nothing", "",
                 [](const parameters&) -> std::unique_ptr<reward> { return nullptr; });
  add.add_reward("judge_throws", "", [](const parameters&) -> std::unique_ptr<reward> {
    return std::make_unique<thrower>();
  });
  add.add_prompt_source("at_throws", "",
                        [](const parameters&, std::uint64_t) -> std::unique_ptr<prompt_source> {
                          return std::make_unique<thrower>();
                        });
  add.add_actor("grumpy", "", [](const parameters&, actor_context&) -> std::unique_ptr<stream_actor> {
    return std::make_unique<thrower>();
  });
}
