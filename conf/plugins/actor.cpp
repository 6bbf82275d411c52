// An actor in the stream: keeps groups from training whose answers are nearly all the same text, and
// writes every group that it sees into a file of JSON lines beside the run's others.
//
//   "plugins": [{"path": "build/libactor.so"}],
//   "actors": [{"kind": "duplicates", "params": {"share": 0.9}}]

#include <millrace/plugin.hpp>

#include <algorithm>
#include <fstream>
#include <map>

using namespace millrace::plugin;

namespace {

class duplicates final : public stream_actor {
public:
  duplicates(const parameters& p, actor_context& context)
    : context_(context), share_(p.number("share", 1)), file_(context.run_directory() + "/groups.jsonl"),
      seen_(context.count("answers", "Answers that were compared")),
      largest_(context.show("largest_share", "Share of the commonest text in the last group")) {
    if (share_ <= 0 || share_ > 1)
      p.refuse("share", "above 0, up to 1");
  }

  std::string on_group(const scored_group& g) override {
    std::map<std::string_view, int> texts;
    int most = 0;
    for (const auto& a : g.answers)
      most = std::max(most, ++texts[a.text]);
    const auto share = static_cast<double>(most)
                       / static_cast<double>(std::max<std::size_t>(1, g.answers.size()));
    seen_.add(static_cast<double>(g.answers.size()));
    largest_.set(share);
    file_ << "{\"group\": " << g.id << ", \"answers\": " << g.answers.size()
          << ", \"different\": " << texts.size() << "}\n";
    return g.answers.size() > 1 && share >= share_ ? "answers are the same" : "";
  }
  void on_step(const step_report& s) override { steps_ = s.published; }
  void on_tick() override { file_.flush(); }
  void on_end() override {
    context_.log(level::info, "saw the stream up to version " + std::to_string(steps_));
  }

private:
  actor_context& context_;
  double share_;
  std::ofstream file_;
  counter& seen_;
  gauge& largest_;
  std::int32_t steps_ = 0;
};

} // namespace

MILLRACE_PLUGIN("duplicates", "Keeps groups of equal answers from training") {
  add.actor<duplicates>("duplicates", "Filters groups where `share` of the answers are one text");
}
