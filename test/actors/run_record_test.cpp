#include "actors/run_record.hpp"
#include "runtime/scratch_folder.hpp"

#include <catch2/catch.hpp>

using namespace millrace;

namespace {

/// A record of a run's newest process, which began at 100 s on its clock.
struct recorded {
  scratch_folder folder{"millrace-test"};
  run_directory directory{folder.path() / "run", run_directory::mode::fresh};
  console screen{true};
  run_record record{settings{}, directory, screen, 100};
};

nlohmann::json step_line(int step, double wall_s, std::int64_t peak) {
  return {{"kind", "step"},         {"step", step},     {"trained_tokens", 10},
          {"generated_tokens", 20 * step}, {"wall_s", wall_s}, {"peak_rss_bytes", peak}};
}

constexpr std::int64_t huge = std::int64_t{1} << 50; ///< more memory than this process has

} // namespace

TEST_CASE("run record: a summary covers the processes before this one") {
  const run_directory::rewound_metrics lines{
    {{{"kind", "eval"}, {"step", 0}, {"eval_accuracy", 0.25}}, step_line(1, 7, huge),
     step_line(2, 9, 1)},
    {step_line(3, 12, 1)}};

  SECTION("one that was killed: as far as its metrics tell, those that are dropped too") {
    recorded r;
    r.record.resume(lines, nlohmann::json::object());
    const auto summary = r.record.summary(103);
    CHECK(summary["wall_s"] == 12 + 3);
    CHECK(summary["peak_rss_bytes"] == huge);
    CHECK(summary["steps"] == 2);
    CHECK(summary["trained_tokens"] == 20);
    CHECK(summary["generated_tokens"] == 40);
  }
  SECTION("one that came to its end: with what it did after its last step") {
    recorded r;
    r.record.resume(lines, {{"wall_s", 30}, {"peak_rss_bytes", 2 * huge}});
    const auto summary = r.record.summary(103);
    CHECK(summary["wall_s"] == 30 + 3);
    CHECK(summary["peak_rss_bytes"] == 2 * huge);
  }
  SECTION("two: an older summary adds nothing to what came after it") {
    recorded r;
    r.record.resume(lines, {{"wall_s", 8}, {"peak_rss_bytes", 1}});
    CHECK(r.record.summary(100)["wall_s"] == 12);
  }
}

TEST_CASE("run record: the summary says when its accuracies were measured") {
  recorded r;
  CHECK(r.record.summary(100)["accuracy_after"].is_null());
  r.record.resume({{{{"kind", "eval"}, {"step", 0}, {"eval_accuracy", 0.25}}}, {}},
                  nlohmann::json::object());
  CHECK(r.record.summary(100)["accuracy_after_step"] == 0);
  r.record.evaluated({.v = {40}, .accuracy = 0.5, .answers = 4}, "while training");
  const auto summary = r.record.summary(100);
  CHECK(summary["accuracy_before"] == 0.25);
  CHECK(summary["accuracy_after"] == 0.5);
  CHECK(summary["accuracy_after_step"] == 40);
}
