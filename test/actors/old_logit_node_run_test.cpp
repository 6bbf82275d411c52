// An old-logit actor on a node of its own, in clusters of real processes on this machine.

#include "runtime/model/transformer.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>

#include "actors/policy_backend.hpp"
#include "actors/training_run.hpp"
#include "runtime/config/config.hpp"
#include "runtime/old_logit_question.hpp"
#include "runtime/scratch_folder.hpp"
#include "test/actors/watched_program.hpp"
#include "test/patience.hpp"
#include "trainer/old_logit_versions.hpp"
#include "trainer/old_logit_worker.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <sys/types.h>

using namespace millrace;
using test::check_accounts, test::endless, test::read, test::tiny_cluster, test::watched;
using test::write;
namespace fs = std::filesystem;

namespace {

/// Trainer "head", generator "gen0" whose weights are 8-bit, "judge" with rewards and replay, and "old".
nlohmann::json with_old_logit_node(int steps) {
  auto j = tiny_cluster(steps);
  j["model"]["architecture"]["max_positions"] = 96;
  j["rollout"] = {{"eta", 4}, {"batch_size", 8}, {"group_size", 4}, {"max_concurrent", 40},
                  {"progress_every_tokens", 4}};
  j["sampling"] = {{"max_tokens", 64}, {"ignore_eos", true}};
  j["generator"] = {{"max_batch", 16}, {"dtype", "int8"}};
  j["trainer"] = {{"lr", 5e-3}}; // so that versions differ
  j["algorithm"] = {{"old_logits", "dedicated"},
                    {"loss", {{"name", "mis_decoupled"}, {"params", {{"disc_high", 5.0}}}}}};
  j["cluster"]["nodes"][2] = {{"name", "old"}, {"actors", {{"old_logits", 1}}}};
  return j;
}

/// What the trainer's own process would have computed: the same worker, given each version as the
/// trainer has it, and the log-probs of a direct forward.
class onlooker {
public:
  explicit onlooker(settings s) : settings_(std::move(s)) { settings_.cluster.nodes.clear(); }

  void before(const train_batch& b, const trainer::policy& p) {
    if (!versions_)
      versions_.emplace(settings_, p.config());
    auto to = versions_->staging();
    auto from = p.views();
    model::transformer copy(p.config());
    auto kept = copy.views();
    for (std::size_t i = 0; i < from.size(); ++i) {
      std::memcpy(to[i].data, from[i].data, from[i].bytes());
      std::memcpy(kept[i].data, from[i].data, from[i].bytes());
    }
    versions_->keep(b.training_from);
    copy.requires_gradient(false);
    networks_.emplace(b.training_from.value, std::move(copy));
    auto& worker = *versions_->worker();
    worker.add(b.groups);
    while (worker.work()) {
    }
    auto known = worker.take(old_logit_question_of(b));
    expected_.clear();
    direct_.clear();
    std::size_t k = 0;
    for (const auto& g : b.groups)
      for (const auto& r : g.rollouts) {
        const auto& logp = known.known.at(k++).logp;
        auto forward = direct(r);
        for (std::size_t t = 0; t < r.tokens.size(); ++t)
          if (r.versions[t] >= 0) {
            expected_.push_back(logp[t]);
            direct_.push_back(forward[t]);
          }
      }
  }

  void after(const trainer::step_statistics& st) {
    REQUIRE(st.old_logp.size() == expected_.size());
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      auto route = st.old_logit_routes[i];
      ++served[std::string(trainer::names(route)[static_cast<std::size_t>(route)])];
      if (route != trainer::old_logit_route::dedicated)
        continue;
      different += st.old_logp[i] != expected_[i] ? 1 : 0;
      from_direct = std::max(from_direct, std::abs(double(st.old_logp[i]) - direct_[i]));
    }
    hidden_s += st.old_logits.hidden_s;
    path_s += st.old_logits.waited_s + st.seconds.old_logits;
    step_s += st.seconds.total;
  }

  std::map<std::string, std::int64_t> served;
  std::int64_t different = 0; ///< in any bit
  double from_direct = 0, hidden_s = 0, path_s = 0, step_s = 0;

private:
  std::vector<float> direct(const rollout& r) const {
    at::NoGradGuard no_grad;
    std::map<std::int32_t, at::Tensor> by_version;
    std::vector<float> out(r.tokens.size());
    for (std::size_t t = 0; t < r.tokens.size(); ++t) {
      auto v = r.versions[t];
      if (v < 0)
        continue;
      if (!by_version.contains(v))
        by_version[v] = at::log_softmax(networks_.at(v).logits(model::pack({r.tokens})), 1);
      out[t] = by_version[v][static_cast<std::int64_t>(t) - 1][r.tokens[t]].item<float>();
    }
    return out;
  }

  settings settings_;
  std::optional<trainer::old_logit_versions> versions_;
  std::map<std::int32_t, model::transformer> networks_;
  std::vector<float> expected_, direct_;
};

/// A run's steps as they come.
class step_lines {
public:
  step_lines(watched& up, const fs::path& run) : up_(up), file_(run / "metrics.jsonl") {}

  /// Waits for a step, after those that were looked at before, of which `fits` says yes.
  template <class Fits>
  bool come(Fits fits, double seconds = test::patience_s) {
    for (int i = 0; i < seconds * 10; ++i) {
      if (fresh(fits))
        return true;
      up_.says("never said", 0.1);
    }
    return false;
  }
  void skip() {
    fresh([](const nlohmann::json&) { return false; });
  }

private:
  template <class Fits>
  bool fresh(Fits fits) {
    std::ifstream in(file_);
    in.seekg(at_);
    for (std::string line; std::getline(in, line) && !in.eof(); at_ = in.tellg())
      if (auto j = nlohmann::json::parse(line, nullptr, false);
          j.contains("old_logits_share_dedicated") && fits(j)) {
        at_ = in.tellg();
        return true;
      }
    return false;
  }

  watched& up_;
  fs::path file_;
  std::streamoff at_ = 0;
};

} // namespace

TEST_CASE("old-logit node: a run's old log-probs are those of the trainer's process, bit for bit") {
  scratch_folder folder("millrace-test");
  auto j = with_old_logit_node(100);
  auto config = write(folder.path() / "c.json", j);
  watched gen({"node", config, "--name", "gen0"}), judge({"node", config, "--name", "judge"}),
    old({"node", config, "--name", "old"});
  run_request request{.options = load_settings(config), .directory = folder.path() / "run",
                      .cluster = true, .quiet = true};
  onlooker looks_on(request.options);
  auto observer = std::make_shared<step_observer>();
  observer->before = [&](const train_batch& b, const trainer::policy& p) { looks_on.before(b, p); };
  observer->after = [&](const train_batch&, const trainer::step_statistics& st) {
    looks_on.after(st);
  };
  request.observer = observer;
  CHECK(run_training(request) == run_outcome::done);
  std::int64_t tokens = 0;
  std::string shares;
  for (const auto& [route, n] : looks_on.served) {
    tokens += n;
    shares += " " + route + " " + std::to_string(n);
  }
  char text[300];
  std::snprintf(text, sizeof text,
                "%lld tokens:%s; %lld differ from the trainer's process, %.1e from direct forwards; "
                "computed off the path %.2f s, on it and waited %.2f s, of steps' %.2f s",
                static_cast<long long>(tokens), shares.c_str(),
                static_cast<long long>(looks_on.different), looks_on.from_direct, looks_on.hidden_s,
                looks_on.path_s, looks_on.step_s);
  std::puts(text);
  INFO(text << "\n" << old.said());
  CHECK(static_cast<double>(looks_on.served["dedicated"]) >= 0.95 * static_cast<double>(tokens));
  CHECK(looks_on.different == 0);
  CHECK(looks_on.from_direct < 1e-5);
  CHECK(gen.ends() == 0);
  CHECK(judge.ends() == 0);
  CHECK(old.ends() == 0);
}

TEST_CASE("old-logit actor on the trainer's node of a cluster: in its process, as without a cluster") {
  scratch_folder folder("millrace-test");
  auto j = with_old_logit_node(30);
  j["cluster"]["nodes"].erase(2);
  j["cluster"]["nodes"][0]["actors"]["old_logits"] = 1;
  auto run = folder.path() / "run";
  watched up({"up", write(folder.path() / "c.json", j), "--run-dir", run.string()});
  CHECK(up.ends() == 0);
  step_lines steps(up, run);
  double exact = 0, n = 0;
  CHECK_FALSE(steps.come(
    [&](const nlohmann::json& step) {
      exact += step["old_logits_share_dedicated"].get<double>()
               + step["old_logits_share_snapshot"].get<double>();
      ++n;
      return false;
    },
    0.2));
  CHECK(n == 30);
  CHECK(exact == Approx(30));
}

TEST_CASE("old-logit node: killed or stopped, the run goes on by the fallback; it comes back and serves") {
  scratch_folder folder("millrace-test");
  auto config = write(folder.path() / "c.json", with_old_logit_node(endless));
  auto run = folder.path() / "run";
  watched up({"up", config, "--run-dir", run.string()});
  REQUIRE(up.says("node old is up"));
  auto served = [](const nlohmann::json& j) { return j["old_logits_share_dedicated"] >= 0.9; };
  auto fell_back = [](const nlohmann::json& j) { return j["old_logits_share_ewma"] >= 0.5; };
  step_lines steps(up, run);
  REQUIRE(steps.come(served));
  CHECK(test::comes_true([&] { // nodes are asked once a second
    watched list({"inspect", run.string()});
    return list.ends() == 0 && list.said().find("old/old_logits") != std::string::npos
           && list.said().find("publisher/fp32") != std::string::npos;
  }));
  auto first = up.node("old");
  steps.skip();
  REQUIRE(kill(first, SIGKILL) == 0);
  REQUIRE(up.says("node old is gone"));
  CHECK(steps.come(fell_back));
  REQUIRE(up.comes_back("old", first));
  CHECK(steps.come(served)); // with the versions since it came back
  auto stopped = up.node("old");
  steps.skip();
  REQUIRE(kill(stopped, SIGSTOP) == 0);
  CHECK(steps.come(fell_back)); // no step waits for longer than it takes to notice
  kill(stopped, SIGCONT);
  CHECK(steps.come(served));
  CHECK(watched({"down", config}).ends() == 0);
  CHECK(up.ends() == 130);
  auto summary = read(run / "summary.json");
  CHECK(summary["staleness_max"] <= 4);
  check_accounts(summary, 8);
}
