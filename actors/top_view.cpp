#include "actors/top_view.hpp"

#include "runtime/error.hpp"
#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/exposition.hpp"
#include "runtime/metrics/lookup.hpp"
#include "runtime/short_forms.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>

namespace millrace {

namespace {

using namespace metrics;

std::string percent(double share) { return printed("%.0f%%", 100 * share); }

std::string bytes(double b) {
  return b >= 1e9 ? printed("%.2f GB", b / 1e9) : printed("%.0f MB", b / 1e6);
}

std::string padded(std::string s, int width) {
  s = cut(s, width);
  return s + std::string(static_cast<std::size_t>(std::max(0, width - static_cast<int>(columns_of(s)))), ' ');
}

class screen {
public:
  screen(const top_frame& f, const top_look& look) : f_(f), look_(look), a_(f.actors) {}

  std::vector<std::string> lines() {
    heading();
    if (first_of(a_, "controller") != nullptr) {
      stream_line();
      learning();
      idle();
      staleness();
      sync();
      waits();
    } else {
      line("the stream is not up; rates and queues follow when it is");
      line("");
    }
    actors();
    return std::move(out_);
  }

private:
  std::string in(const char* code, const std::string& s) const {
    return look_.colour ? std::string("\033[") + code + "m" + s + "\033[0m" : s;
  }
  std::string dim(const std::string& s) const { return in("2", s); }
  std::string bold(const std::string& s) const { return in("1", s); }
  std::string amber(const std::string& s) const { return in("33", s); }

  void line(const std::string& s) { out_.push_back(cut(s, look_.width)); }
  void row(const char* title, const std::string& s) { line(dim(padded(title, 10)) + s); }

  std::string bar(double share, int width) const {
    auto eighths = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * width * 8));
    static constexpr const char* part[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    std::string s;
    for (int i = 0; i < eighths / 8; ++i)
      s += "█";
    s += part[eighths % 8];
    for (auto n = eighths / 8 + (eighths % 8 > 0 ? 1 : 0); n < width; ++n)
      s += "·";
    return s;
  }

  void heading() {
    auto state = std::string("running");
    if (const auto* p = first_of(a_, "process"))
      state = p->state;
    line(bold("millrace top") + "  "
         + (f_.stall.empty() ? in("32", state) : amber("stalled"))
         + printed("  step %lld/%lld %s  up %s", static_cast<long long>(f_.step),
                   static_cast<long long>(f_.steps),
                   percent(static_cast<double>(f_.step)
                           / std::max<double>(1, static_cast<double>(f_.steps))).c_str(),
                   short_duration(f_.up_s).c_str()));
    line(dim(f_.directory));
    line("");
    if (!f_.stall.empty()) {
      std::size_t from = 0;
      while (from < f_.stall.size()) {
        auto end = std::min(f_.stall.find('\n', from), f_.stall.size());
        line(amber(f_.stall.substr(from, end - from)));
        from = end + 1;
      }
      line("");
    }
  }

  void stream_line() {
    const auto& r = f_.rates;
    row("tokens/s", "generated " + bold(short_number(r.generated)) + "  trained "
                      + bold(short_number(r.trained)) + " ("
                      + percent(r.trained > 0 ? r.useful / r.trained : 0) + " useful)  re-prefill "
                      + short_number(r.reprefilled) + "  lost " + short_number(r.discarded));
    auto state = [&](const char* s) { return short_number(total(a_, rollouts_in_state, s)); };
    row("rollouts", "running " + state("running") + " → scoring " + state("scoring")
                      + " → siblings " + state("scored") + " → replay " + state("buffered")
                      + " → training " + state("training"));
    auto budget = total(a_, admission_budget);
    auto used = total(a_, admission_outstanding);
    row("budget",
        bar(budget > 0 ? used / budget : 0, 20)
          + printed(" %.0f of %.0f outstanding  %.1f/s finished", used, budget, r.rollouts));
  }

  void learning() {
    row("learning",
        printed("reward %.3f ± %.2f  right %s  held out %s  length %.1f  cut %s",
                mean(a_, batch_reward_mean), mean(a_, batch_reward_std),
                percent(mean(a_, batch_accuracy)).c_str(),
                percent(mean(a_, held_out_accuracy)).c_str(), mean(a_, batch_length),
                percent(mean(a_, batch_truncated)).c_str()));
    row("", printed("entropy %.3f  KL %.4f  ESS %.3f  grad %.2f  clip +%s −%s  mask %s",
                    mean(a_, entropy), mean(a_, kl_infer_train), mean(a_, effective_sample_size),
                    mean(a_, grad_norm), percent(mean(a_, clip_fraction_positive)).c_str(),
                    percent(mean(a_, clip_fraction_negative)).c_str(),
                    percent(mean(a_, mask_fraction)).c_str()));
  }

  void idle() {
    auto g = mean(a_, generator_idle_ratio), t = mean(a_, trainer_idle_ratio);
    row("idle", "generators " + bar(g, 14) + printed(" %4s", percent(g).c_str()) + "   trainer "
                  + bar(t, 14) + printed(" %4s", percent(t).c_str()));
  }

  void staleness() {
    std::vector<double> flight, queue;
    for (int s = 0; s < 10; ++s) {
      flight.push_back(total(a_, in_flight_by_staleness, staleness_label(s)));
      queue.push_back(total(a_, queue_by_staleness, staleness_label(s)));
    }
    auto h = merged(a_, trained_staleness);
    std::vector<double> trained(h.counts.begin(), h.counts.end());
    auto last = std::size_t{0};
    for (const auto* v : {&flight, &queue, &trained})
      for (std::size_t s = 0; s < v->size(); ++s)
        if ((*v)[s] > 0)
          last = std::max(last, s);
    last = std::min<std::size_t>(std::max<std::size_t>(last, static_cast<std::size_t>(f_.eta)), 5);
    std::string head = "          ";
    for (std::size_t s = 0; s <= last; ++s)
      head += padded(std::to_string(s) + (s == 5 ? "+" : ""), cell);
    row("staleness", head + dim("η = " + std::to_string(f_.eta)));
    staleness_row("in flight", flight, last, "rollouts");
    staleness_row("in queue", queue, last, "rollouts");
    staleness_row("trained", trained, last, "tokens");
  }

  static constexpr int cell = 9;

  void staleness_row(const char* title, const std::vector<double>& counts, std::size_t last,
                     const char* unit) {
    double all = 0;
    for (auto c : counts)
      all += c;
    std::string s = padded(title, 10);
    for (std::size_t i = 0; i <= last; ++i) {
      auto n = counts[i];
      if (i == last)
        for (auto k = i + 1; k < counts.size(); ++k)
          n += counts[k];
      s += padded(bar(all > 0 ? n / all : 0, 3) + " " + (all > 0 ? percent(n / all) : "–"), cell);
    }
    row("", s + dim(short_number(all) + " " + unit));
  }

  void sync() {
    auto mean_of = [&](const histogram& m, const char* label = "") {
      auto h = merged(a_, m, label);
      return h.count() > 0 ? h.sum / static_cast<double>(h.count()) : 0;
    };
    auto stage = [&](const char* s) { return short_duration(mean_of(swap_stage, s)); };
    row("sync", "pause " + bold(short_duration(mean_of(swap_pause))) + " of "
                  + short_duration(mean_of(swap_total)) + " from the notice of a version to the swap");
    row("", "pull " + stage("pull") + "  verify " + stage("verify") + "  load " + stage("load")
              + (mean_of(swap_stage, "quantise") > 0.01 * mean_of(swap_total)
                   ? "  quantise " + stage("quantise") : "")
              + "  re-prefill " + stage("prefill"));
  }

  /// From the trainer on: whom it waits for (→), whom that waits for, and so on.
  void waits() {
    auto graph_text = std::string();
    std::set<std::string> told;
    const auto* at = first_of(a_, "trainer");
    while (at != nullptr && told.insert(at->name).second) {
      graph_text += at->name;
      if (at->waits_for.empty())
        graph_text += " (" + at->state + " " + short_duration(at->since) + ")";
      const auto* next = static_cast<const actor_snapshot*>(nullptr);
      for (const auto& a : f_.actors)
        if (!at->waits_for.empty() && (a.name == at->waits_for || a.kind + "s" == at->waits_for)
            && (next == nullptr || (a.waits_for.empty() && !next->waits_for.empty())))
          next = &a;
      if (!at->waits_for.empty())
        graph_text += " → " + (next == nullptr ? at->waits_for : std::string());
      at = next;
    }
    row("waits", graph_text.empty() ? "no trainer yet" : graph_text);
    line("");
  }

  void actors() {
    int width = 10;
    for (const auto& a : f_.actors)
      width = std::max(width, static_cast<int>(columns_of(full_name(a))));
    width = std::min(width, 26);
    line(bold(padded("ACTOR", width + 1) + padded("STATE, → WAITS", 17) + padded("SINCE", 8)
              + padded("MAIL", 5) + "ABOUT"));
    for (const auto& a : f_.actors) {
      auto state = a.waits_for.empty() ? a.state : "→ " + a.waits_for;
      auto late = a.silent > 3 && !(a.waits_for.empty() && a.since >= a.silent - 2);
      auto about_it = late ? amber("no sign for " + short_duration(a.silent)) : dim(about(a));
      line(padded(cut(full_name(a), width), width + 1) + padded(state, 16) + " "
           + padded(short_duration(a.since), 8) + padded(std::to_string(a.mailbox), 5) + about_it);
    }
  }

  static std::string about(const actor_snapshot& a) {
    std::span<const actor_snapshot> one(&a, 1);
    auto n = [&](const metric& m, std::string_view label = {}) {
      return short_number(total(one, m, label));
    };
    if (a.kind == "controller")
      return n(rollouts_ended, "trained") + " of " + n(rollouts_admitted) + " trained";
    if (a.kind == "generator")
      return "v" + n(generator_version) + ", " + n(generator_running) + " run, "
             + percent(total(one, generator_idle_ratio)) + " idle";
    if (a.kind == "receiver")
      return n(pulls, "done") + " pulls, " + n(pulls, "failed") + " failed";
    if (a.kind == "reward")
      return n(answers_scored) + " judged, " + n(answers_scored, "correct") + " right";
    if (a.kind == "replay")
      return n(replay_depth) + " of " + n(replay_capacity);
    if (a.kind == "old_logits")
      return n(old_logit_groups, "waiting") + " groups to do, " + n(old_logit_versions) + " versions";
    if (a.kind == "trainer")
      return n(steps_trained) + " steps, " + n(tokens_trained) + " tokens";
    if (a.kind == "publisher")
      return n(versions_published) + " versions, " + n(leases_open) + " readers";
    if (a.kind == "evaluator")
      return n(evaluations, "done") + " evaluations";
    if (a.kind == "process")
      return bytes(total(one, resident_memory)) + ", " + n(threads) + " threads";
    return {};
  }

  const top_frame& f_;
  top_look look_;
  std::span<const actor_snapshot> a_;
  std::vector<std::string> out_;
};

} // namespace

std::string full_name(const actor_snapshot& a) {
  return a.node == "local" || a.name.starts_with(a.node + "/") ? a.name : a.node + "/" + a.name;
}

std::string cut(std::string_view line, int width) {
  if (static_cast<int>(columns_of(line)) <= width)
    return std::string(line);
  std::string out;
  int n = 0;
  bool coloured = false;
  for (std::size_t i = 0; i < line.size();) {
    if (line[i] == '\033') {
      auto end = std::min(line.find('m', i) + 1, line.size());
      out += line.substr(i, end - i);
      coloured = true;
      i = end;
      continue;
    }
    if (n + 1 >= width)
      break;
    do
      out += line[i++];
    while (i < line.size() && (static_cast<unsigned char>(line[i]) & 0xC0U) == 0x80);
    ++n;
  }
  if (width > 0)
    out += "…";
  return coloured ? out + "\033[0m" : out;
}

top_frame read_top_frame(const nlohmann::json& j) {
  if (!j.is_object() || !j.contains("run") || !j.contains("actors"))
    throw user_error("/introspect: is no answer of a Millrace monitor");
  top_frame out;
  const auto& run = j["run"];
  out.directory = run.value("directory", "");
  out.step = run.value("step", std::int64_t{0});
  out.steps = run.value("steps", std::int64_t{0});
  out.eta = run.value("eta", 0);
  out.up_s = run.value("up_s", 0.0);
  auto rates = j.value("rates", nlohmann::json::object());
  out.rates = {rates.value("generated", 0.0),   rates.value("trained", 0.0),
               rates.value("useful", 0.0),      rates.value("reprefilled", 0.0),
               rates.value("discarded", 0.0),   rates.value("rollouts", 0.0),
               rates.value("steps", 0.0)};
  if (j.contains("stall") && j["stall"].is_object())
    out.stall = j["stall"].value("text", "");
  for (const auto& a : j["actors"])
    out.actors.push_back(snapshot_from_json(a));
  return out;
}

std::vector<std::string> top_screen(const top_frame& frame, const top_look& look) {
  return screen(frame, look).lines();
}

std::string top_line(const top_frame& f) {
  std::span<const actor_snapshot> a(f.actors);
  auto out = printed("step %lld/%lld  reward %.3f  right %s  staleness %.2f/%d  generated ",
                     static_cast<long long>(f.step), static_cast<long long>(f.steps),
                     mean(a, batch_reward_mean), percent(mean(a, batch_accuracy)).c_str(),
                     mean(a, staleness_mean), f.eta)
             + short_number(f.rates.generated) + "/s  trained " + short_number(f.rates.trained)
             + "/s  idle gen " + percent(mean(a, generator_idle_ratio)) + " train "
             + percent(mean(a, trainer_idle_ratio));
  if (!f.stall.empty())
    out += "  STALLED";
  return out;
}

} // namespace millrace
