#include "runtime/atomic_file.hpp"
#include "runtime/report.hpp"
#include "runtime/report/chart.hpp"
#include "runtime/run_directory.hpp"

#include <catch2/catch.hpp>

#include <cmath>
#include <filesystem>
#include <regex>
#include <unistd.h>

using namespace millrace;
using nlohmann::json;

namespace {

report_input run_of(int steps) {
  report_input in;
  in.title = "test";
  in.config = {{"seed", 3}, {"rollout", {{"eta", 2}, {"batch_size", 64}, {"group_size", 8}}}};
  in.lines.push_back({{"kind", "eval"}, {"step", 0}, {"eval_accuracy", 0.31}});
  for (int i = 1; i <= steps; ++i)
    in.lines.push_back({{"kind", "step"}, {"step", i}, {"time_s", i}, {"reward_mean", 0.5},
                        {"reward_std", 0.4}, {"accuracy", 0.5}, {"staleness_mean", 1.0},
                        {"staleness_max", i % 3}, {"entropy", 1.0 / i}, {"grad_norm", 1.0},
                        {"staleness", {10, 20, 30}}});
  in.lines.push_back({{"kind", "eval"}, {"step", steps}, {"eval_accuracy", 0.95}});
  return in;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++n;
  return n;
}

} // namespace

TEST_CASE("the report shows accuracy before and after, and needs nothing from outside") {
  const auto page = make_report(run_of(50));
  REQUIRE(page.find("31%") != std::string::npos);
  REQUIRE(page.find("95%") != std::string::npos);
  for (const char* outside : {"http:", "https:", "src=", "@import", "<link", "url("})
    REQUIRE(page.find(outside) == std::string::npos);
  REQUIRE(count(page, "<figure") == count(page, "</figure>"));
  REQUIRE(count(page, "<svg") == 6);
  REQUIRE(page.find("nan") == std::string::npos);
  REQUIRE(page.find("inf\"") == std::string::npos);
}

TEST_CASE("the report of an interrupted run says which step its last evaluation was after") {
  auto in = run_of(50);
  in.summary = {{"accuracy_before", 0.31}, {"accuracy_after", 0.95}, {"accuracy_after_step", 50}};
  REQUIRE(make_report(in).find("before and after training") != std::string::npos);
  in.summary["accuracy_after_step"] = 40;
  REQUIRE(make_report(in).find("before and after step 40") != std::string::npos);
}

TEST_CASE("any input makes a page: none, one step, nulls, wrong types, wild numbers") {
  REQUIRE(make_report({}).find("No training step") != std::string::npos);
  REQUIRE(make_report(run_of(1)).find("<svg") != std::string::npos);
  auto in = run_of(3);
  in.lines.push_back({{"kind", "step"}, {"step", 4}, {"reward_mean", nullptr}, {"entropy", "high"},
                      {"staleness", "many"}, {"grad_norm", 1e300}, {"accuracy", -5}});
  in.lines.push_back({{"step", nullptr}, {"kind", 7}});
  in.lines.push_back({{"step", 7}, {"entropy", 1e300}});
  in.lines.push_back({{"step", 8}, {"entropy", std::nextafter(1e300, 2e300)}, {"loss", 1e300}});
  in.lines.push_back({{"step", 9}, {"loss", std::nextafter(1e300, 2e300)}});
  in.lines.push_back({{"step", 5}, {"grad_norm", std::nan("")}, {"staleness", {nullptr, -1, 1e300}}});
  in.summary = {{"rollouts", {{"admitted", 10}, {"trained", 7}, {"failed", 2}}}, {"ended", 3},
                {"reasons", {{"failed: x", "many"}}}, {"generated_tokens", 5}};
  in.config = json::array();
  const auto page = make_report(in);
  REQUIRE(page.find("The sums differ") != std::string::npos);
}

TEST_CASE("the report tells what became of every rollout, and why") {
  auto in = run_of(3);
  in.summary = {{"rollouts", {{"admitted", 5000}, {"trained", 4000}, {"dropped", 990}, {"in_flight", 10}}},
                {"reasons", {{"dropped: stale", 3}}}};
  for (int i = 0; i < 10; ++i)
    in.summary["reasons"]["dropped: odd <" + std::to_string(i) + ">"] = 10 + i;
  const auto page = make_report(in);
  REQUIRE(page.find("Every rollout is accounted for") != std::string::npos);
  REQUIRE(page.find("4,000") != std::string::npos);
  REQUIRE(page.find("odd &lt;9&gt;</td><td>19</td>") < page.find("odd &lt;2&gt;</td><td>12</td>"));
  REQUIRE(page.find("odd &lt;1&gt;") == std::string::npos);
  REQUIRE(page.find("3 more reasons") != std::string::npos);
}

TEST_CASE("the band around the reward is within the axes") {
  const auto page = make_report(run_of(50)); // 0.5 ± 0.4: to 0.9
  const auto reward = page.substr(page.find(">Reward<"));
  std::smatch band;
  REQUIRE(std::regex_search(reward, band, std::regex("class=band[^>]* d=\"([^\"]*)\"")));
  const auto points = band[1].str();
  const std::regex point("[ML][0-9.]+ (-?[0-9.]+)");
  int n = 0;
  for (std::sregex_iterator at(points.begin(), points.end(), point), end; at != end; ++at, ++n) {
    const auto y = std::stod((*at)[1]);
    REQUIRE(y > 12); // below the top, and not pressed against it
    REQUIRE(y <= 204);
  }
  REQUIRE(n == 100);
}

TEST_CASE("the KL from a reference is shown only where there is one") {
  auto in = run_of(3);
  for (auto& line : in.lines)
    line["kl_infer_train"] = line["kl_reference"] = 0.0;
  REQUIRE(make_report(in).find("from the reference") == std::string::npos);
  in.config["algorithm"]["kl"]["reference"] = "none";
  REQUIRE(make_report(in).find("from the reference") == std::string::npos);
  in.config["algorithm"]["kl"]["reference"] = "frozen";
  REQUIRE(make_report(in).find("from the reference") != std::string::npos);
}

TEST_CASE("text from outside can't become markup") {
  auto in = run_of(2);
  in.title = "<script>alert(1)</script>\"x";
  in.config_text = "</pre><script>alert(2)</script>";
  in.summary = {{"ended", "<b>bad</b>"}};
  const auto page = make_report(in);
  REQUIRE(count(page, "<script>") == 1);
  REQUIRE(page.find("<b>bad") == std::string::npos);
}

TEST_CASE("tokens beyond η are drawn as an error") {
  auto in = run_of(5);
  REQUIRE(make_report(in).find("class=\"bar bad\"") == std::string::npos);
  in.lines.push_back({{"step", 6}, {"staleness_max", 3}, {"staleness", {1, 1, 1, 1}}});
  const auto page = make_report(in);
  REQUIRE(page.find("class=\"bar bad\"") != std::string::npos);
  REQUIRE(page.find("beyond η") != std::string::npos);
}

TEST_CASE("a long run's page stays small") {
  REQUIRE(make_report(run_of(20000)).size() < 600'000);
}

TEST_CASE("the report is written from what the run directory holds, whenever") {
  const auto base = std::filesystem::temp_directory_path()
                    / ("millrace_report_" + std::to_string(::getpid()));
  {
    run_directory run(base / "my-run", run_directory::mode::fresh);
    write_report(run);
    REQUIRE(read_file(run.report_file()).find("<h1>my-run") != std::string::npos);
    run.write_config("{\"rollout\": {\"eta\": 2}}");
    run.append_metrics({{"kind", "step"}, {"step", 1}, {"reward_mean", 0.25}});
    run.write_summary({{"ended", "done"}});
    write_report(run);
    const auto page = read_file(run.report_file());
    REQUIRE(page.find("Reward") != std::string::npos);
    REQUIRE(page.find(">done<") != std::string::npos);
  }
  std::filesystem::remove_all(base);
}

TEST_CASE("numbers as people write them") {
  using report::format;
  using report::number_style;
  CHECK(format(0) == "0");
  CHECK(format(12345) == "12.3k");
  CHECK(format(-2500000) == "-2.5M");
  CHECK(format(5162) == "5162");
  CHECK(format(0.0005) == "0.0005");
  CHECK(format(1e-7) == "1.0e-07");
  CHECK(format(0.948, number_style::percent) == "94.8%");
  CHECK(format(1, number_style::percent) == "100%");
  CHECK(format(0.001, number_style::percent) == "0.1%");
  CHECK(format(0.00012, number_style::seconds) == "120 µs");
  CHECK(format(0, number_style::seconds) == "0");
  CHECK(format(std::nan("")) == "–");
}
