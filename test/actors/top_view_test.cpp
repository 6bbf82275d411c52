#include "actors/top_view.hpp"
#include "runtime/error.hpp"
#include "runtime/metrics/board.hpp"
#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/exposition.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

using namespace millrace;

namespace {

int columns(const std::string& line) {
  int n = 0;
  for (unsigned char c : line)
    n += (c & 0xC0U) != 0x80 ? 1 : 0;
  return n;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string out;
  for (const auto& l : lines)
    out += l + "\n";
  return out;
}

/// What a monitor would say of a stream in which the trainer waits.
nlohmann::json introspect() {
  snapshot_board board;
  auto process = board.add("process", "process", 0);
  process->working("training", 0);
  auto controller = board.add("controller", "controller", 0);
  controller->waiting("generators", "64 rollouts to finish", 8);
  controller->metrics.set(metrics::stream_version, 40);
  controller->metrics.set(metrics::admission_budget, 192);
  controller->metrics.set(metrics::admission_outstanding, 96);
  controller->metrics.set(metrics::in_flight_by_staleness, "1", 10);
  auto generator = board.add("generator", "generator-with-a-very-long-name-0", 0);
  generator->working("decoding", 4);
  auto replay = board.add("replay", "replay", 0);
  replay->waiting("controller", "12 more rollouts", 9);
  auto trainer = board.add("trainer", "trainer", 0);
  trainer->waiting("replay", "a batch", 9);
  for (auto& a : {process, controller, generator, replay, trainer})
    a->beat(3, 10);
  nlohmann::json j{{"run",
                    {{"directory", "/runs/x"},
                     {"step", 40},
                     {"steps", 800},
                     {"eta", 2},
                     {"up_s", 10}}},
                   {"rates", {{"generated", 15100}, {"trained", 13700}, {"useful", 6850}}},
                   {"stall", nullptr},
                   {"actors", nlohmann::json::array()}};
  for (const auto& a : board.snapshots(10))
    j["actors"].push_back(nlohmann::json(to_json(a)));
  return j;
}

} // namespace

TEST_CASE("top: the screen has everything, and keeps to 80 columns") {
  auto lines = top_screen(read_top_frame(introspect()), {});
  auto text = joined(lines);
  INFO(text);
  for (const auto& l : lines)
    CHECK(columns(l) <= 80);
  for (const char* part :
       {"step 40/800 5%", "generated 15.1k  trained 13.7k (50% useful)", "96 of 192 outstanding",
        "trainer → replay → controller → generator-with-a-very-long-name-0",
        "in flight", "in queue", "trained", "pause 0 µs", "entropy"})
    CHECK(text.find(part) != std::string::npos);
  CHECK(text.find('\033') == std::string::npos);
}

TEST_CASE("top: any width, with colours, cuts lines and nothing else") {
  auto frame = read_top_frame(introspect());
  for (int width : {1, 2, 20, 79, 200})
    for (bool colour : {false, true})
      for (const auto& l : top_screen(frame, {width, colour})) {
        auto plain = l;
        while (plain.find('\033') != std::string::npos) {
          auto at = plain.find('\033');
          plain.erase(at, plain.find('m', at) - at + 1);
        }
        CHECK(columns(plain) <= width);
      }
}

TEST_CASE("top: a stall is shown, a silent actor too, and the line for logs says so") {
  auto j = introspect();
  j["stall"] = {{"text", "nothing was trained for 40 s\n  trainer  waits"}};
  j["actors"][2]["silent"] = 12.0;
  auto frame = read_top_frame(j);
  auto text = joined(top_screen(frame, {}));
  CHECK(text.find("stalled") != std::string::npos);
  CHECK(text.find("nothing was trained for 40 s\n  trainer  waits\n") != std::string::npos);
  CHECK(text.find("no sign for 12 s") != std::string::npos);
  CHECK(top_line(frame).ends_with("STALLED"));
  CHECK(top_line(frame).starts_with("step 40/800  reward 0.000"));
}

TEST_CASE("top: before the stream is up, and what is no monitor") {
  auto early = read_top_frame({{"run", nlohmann::json::object()}, {"actors", nlohmann::json::array()}});
  CHECK(joined(top_screen(early, {})).find("the stream is not up") != std::string::npos);
  for (const char* text : {"null", "[]", "{}", "3", R"({"run": {}})"})
    CHECK_THROWS_AS(read_top_frame(nlohmann::json::parse(text)), user_error);
}

TEST_CASE("top: lines are cut by columns") {
  CHECK(cut("abcdef", 4) == "abc…");
  CHECK(cut("äöü", 3) == "äöü");
}
