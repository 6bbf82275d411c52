#include "bench/benchmarks.hpp"

#include "actors/http_client.hpp"
#include "actors/training_run.hpp"
#include "bench/instruments.hpp"
#include "runtime/error.hpp"
#include "runtime/metrics/board.hpp"
#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/lookup.hpp"
#include "runtime/scratch_folder.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace millrace::bench {

namespace {

/// Generator and trainer both work all the time: what a scrape could disturb most.
settings busy(std::int32_t steps) {
  settings s;
  s.seed = 11;
  s.run.steps = steps;
  s.run.log_every = 100'000;
  s.run.checkpoint_every = 0;
  s.model.architecture = {.layers = 2, .hidden = 128, .heads = 4, .kv_heads = 2,
                          .intermediate = 352, .max_positions = 128};
  s.data.held_out = 8;
  s.rollout = {.eta = 4, .batch_size = 64, .group_size = 8, .max_concurrent = 256};
  s.sampling.max_tokens = 64;
  s.eval.prompts = 1;
  s.log.level = log_level::error;
  return s;
}

/// Processor seconds of this process's threads: the monitor's, and all.
struct processor_time {
  double monitor = 0, all = 0;
};

processor_time used() {
  processor_time out;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream name(thread.path() / "comm"), times(thread.path() / "schedstat");
    std::string text;
    double ns = 0;
    std::getline(name, text);
    times >> ns;
    out.all += ns * 1e-9;
    if (text.starts_with("monitor"))
      out.monitor += ns * 1e-9;
  }
  return out;
}

double trained_tokens() {
  return total(snapshot_board::of_process()->snapshots(0), metrics::tokens_trained);
}

void sleep_until(std::chrono::steady_clock::time_point when) {
  std::this_thread::sleep_until(when);
}

struct watched_run {
  std::vector<double> answer_ms;
  double cost = 0; ///< processor time of the monitor over that of the process
  std::vector<double> with, without; ///< trained tokens per second
};

/// Windows of some seconds, in turn with one scrape a second and with none.
watched_run watch_run(int windows, double window_s) {
  scratch_folder folder("millrace-bench");
  watched_run out;
  std::atomic<bool> done{false};
  auto s = busy(1'000'000);
  run_request request{.options = s, .directory = folder.path() / "run", .quiet = true};
  std::thread reader;
  request.started = [&](auto&&...) {
    reader = std::thread([&] {
      auto run = find_run((folder.path() / "run").string());
      using clock = std::chrono::steady_clock;
      while (trained_tokens() == 0)
        sleep_until(clock::now() + std::chrono::milliseconds(100));
      double monitor = 0, all = 0;
      for (int w = 0; w < windows; ++w) {
        auto begin = clock::now();
        auto tokens = trained_tokens();
        auto before = used();
        for (int second = 0; second < static_cast<int>(window_s); ++second) {
          if (w % 2 == 1)
            for (const char* page : {"metrics", "introspect"})
              out.answer_ms.push_back(1e3 * seconds([&] { (void) http_get(run, page); }));
          sleep_until(begin + std::chrono::seconds(second + 1));
        }
        auto took = std::chrono::duration<double>(clock::now() - begin).count();
        (w % 2 == 1 ? out.with : out.without).push_back((trained_tokens() - tokens) / took);
        if (w % 2 == 1) {
          auto after = used();
          monitor += after.monitor - before.monitor;
          all += after.all - before.all;
        }
      }
      out.cost = monitor / all;
      done = true;
    });
  };
  request.interrupted = [&] { return done.load(); };
  run_training(request);
  reader.join();
  return out;
}

} // namespace

measurements introspection(const options& how) {
  note("a training run that is busy throughout, scraped once a second in every other window");
  auto run = watch_run(how.quick ? 4 : 20, how.quick ? 2 : 5);
  std::sort(run.answer_ms.begin(), run.answer_ms.end());
  measurements out;
  out.push_back({"processor time of the monitor, /metrics and /introspect once a second", run.cost,
                 "of the process's", "", {}, 0.01, true});
  measurement rate{"trained with one scrape of each a second", median(run.with), "tokens/s",
                   "without"};
  rate.ratio = rate.value / median(run.without);
  out.push_back(rate);
  out.push_back({"an answer while generator and trainer are busy, median", median(run.answer_ms), "ms"});
  out.push_back({"the slowest of " + std::to_string(run.answer_ms.size()) + " answers",
                 run.answer_ms.back(), "ms", "", {}, 50, true});
  return out;
}

} // namespace millrace::bench
