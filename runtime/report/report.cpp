#include "runtime/report.hpp"

#include "runtime/atomic_file.hpp"
#include "runtime/report/chart.hpp"
#include "runtime/report/page.hpp"
#include "runtime/run_directory.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace {
namespace {

using nlohmann::json;
using report::chart;
using report::escape;
using report::format;
using report::number_style;
using report::series;

constexpr double none = std::numeric_limits<double>::quiet_NaN();

double number(const json& object, const std::string& key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<double>() : none;
}

/// A value of the resolved configuration by its dotted path.
double option(const json& config, const std::string& path) {
  const json* at = &config;
  for (std::size_t from = 0;;) {
    const auto end = std::min(path.find('.', from), path.size());
    if (!at->is_object())
      return none;
    const auto next = at->find(path.substr(from, end - from));
    if (next == at->end())
      return none;
    at = &*next;
    if (end == path.size())
      return at->is_number() ? at->get<double>() : none;
    from = end + 1;
  }
}

std::string duration(double s) {
  if (!std::isfinite(s))
    return "–";
  if (s < 90)
    return format(s < 10 ? s : std::round(s)) + " s";
  const auto whole = static_cast<long>(std::round(s));
  if (whole < 3600)
    return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole / 60 % 60) + " min";
}

/// "11,712".
std::string count(double n) {
  if (!std::isfinite(n) || std::abs(n) > 9e15)
    return "–";
  auto text = std::to_string(static_cast<long long>(n));
  for (auto i = static_cast<std::ptrdiff_t>(text.size()) - 3; i > (n < 0); i -= 3)
    text.insert(std::size_t(i), ",");
  return text;
}

/// The lines of one kind.
class run_lines {
public:
  explicit run_lines(const report_input& in) : in_(in) {
    for (const auto& line : in.lines) {
      const auto at = line.find("kind");
      const auto kind = at != line.end() && at->is_string() ? at->get<std::string>() : "step";
      (kind == "eval" ? evals : kind == "warmup" ? warmup : steps).push_back(&line);
    }
  }

  [[nodiscard]] series of(const std::vector<const json*>& lines, std::string name,
                          const std::string& key, int colour) const {
    series s;
    s.name = std::move(name);
    s.colour = colour;
    for (const auto* line : lines)
      if (const double x = number(*line, "step"); std::isfinite(x))
        s.points.push_back({x, number(*line, key)});
    std::stable_sort(s.points.begin(), s.points.end(), [](auto& a, auto& b) { return a.x < b.x; });
    return s;
  }
  [[nodiscard]] series step(std::string name, const std::string& key, int colour) const {
    return of(steps, std::move(name), key, colour);
  }
  [[nodiscard]] series smooth(std::string name, const std::string& key, int colour) const {
    auto s = step(std::move(name), key, colour);
    s.smooth = true;
    return s;
  }
  [[nodiscard]] series eval(std::string name, int colour) const {
    auto s = of(evals, std::move(name), "eval_accuracy", colour);
    s.dots = true;
    return s;
  }

  /// Mean over the steps; none when there is none.
  [[nodiscard]] double mean(const std::string& key) const {
    double sum = 0;
    std::size_t n = 0;
    for (const auto* line : steps)
      if (const double v = number(*line, key); std::isfinite(v)) {
        sum += v;
        ++n;
      }
    return n > 0 ? sum / double(n) : none;
  }
  [[nodiscard]] double largest(const std::string& key) const {
    double out = none;
    for (const auto* line : steps)
      if (const double v = number(*line, key); !(v <= out))
        out = std::isfinite(v) ? v : out;
    return out;
  }
  /// Trained tokens by staleness, over all steps.
  [[nodiscard]] std::vector<double> staleness() const {
    std::vector<double> out;
    for (const auto* line : steps) {
      const auto at = line->find("staleness");
      if (at == line->end() || !at->is_array())
        continue;
      for (std::size_t k = 0; k < std::min<std::size_t>(at->size(), 4096); ++k) {
        out.resize(std::max(out.size(), k + 1));
        out[k] += (*at)[k].is_number() ? (*at)[k].get<double>() : 0;
      }
    }
    while (!out.empty() && out.back() == 0)
      out.pop_back();
    return out;
  }

  [[nodiscard]] double accuracy_before() const {
    const auto s = number(in_.summary, "accuracy_before");
    return std::isfinite(s) || evals.empty() ? s : number(*evals.front(), "eval_accuracy");
  }
  [[nodiscard]] double accuracy_after() const {
    if (number(in_.summary, "accuracy_after_step") == 0)
      return none; // that one was before training
    const auto s = number(in_.summary, "accuracy_after");
    return std::isfinite(s) || evals.size() < 2 ? s : number(*evals.back(), "eval_accuracy");
  }
  [[nodiscard]] double seconds() const { return largest("time_s"); }
  /// "after training", unless training went on after the last evaluation: it was interrupted.
  [[nodiscard]] std::string when_after() const {
    const double at = number(in_.summary, "accuracy_after_step"), end = largest("step");
    return at < end ? "after step " + format(at, number_style::whole) : "after training";
  }

  std::vector<const json*> steps, evals, warmup;

private:
  const report_input& in_;
};

// -- heading ---------------------------------------------------------------------------------------

std::string tile(const std::string& name, const std::string& value, const std::string& note,
                 bool wide = false) {
  return "<div class=\"tile" + std::string(wide ? " wide" : "") + "\"><span>" + escape(name)
         + "</span><strong>" + value + "</strong><em>" + escape(note) + "</em></div>\n";
}

std::string staleness_tile(const run_lines& run, const json& config) {
  const double eta = option(config, "rollout.eta"), worst = run.largest("staleness_max");
  if (!std::isfinite(worst))
    return {};
  std::string value = format(worst, number_style::whole);
  if (std::isfinite(eta))
    value += " <small>of " + format(eta, number_style::whole) + "</small>";
  const auto note = !std::isfinite(eta) ? "" : worst > eta ? "beyond η: report this"
                                                           : "largest; η holds";
  return tile("Staleness", value, note);
}

std::string tiles(const run_lines& run, const report_input& in) {
  std::string out = "<div class=tiles>\n";
  const double before = run.accuracy_before(), after = run.accuracy_after();
  if (std::isfinite(after))
    out += tile("Held-out accuracy",
                "<small>" + format(before, number_style::percent) + " →</small> "
                  + format(after, number_style::percent),
                "before and " + run.when_after(), true);
  else if (std::isfinite(before))
    out += tile("Held-out accuracy", format(before, number_style::percent), "before training", true);
  out += staleness_tile(run, in.config);
  const auto rate = [&](const char* name, const char* total, const char* key) {
    double value = number(in.summary, total) / run.seconds();
    if (!std::isfinite(value))
      value = run.mean(key);
    if (std::isfinite(value))
      out += tile(name, format(value) + " <small>tok/s</small>", "mean of the run");
  };
  rate("Generated", "generated_tokens", "generated_tokens_per_s");
  rate("Trained", "trained_tokens", "trained_tokens_per_s");
  const double g = run.mean("generator_idle"), t = run.mean("trainer_idle");
  if (std::isfinite(g) && std::isfinite(t))
    out += tile("Idle", format(std::round(g * 100)) + "% <small>/</small> "
                          + format(std::round(t * 100)) + "%", "gener. / trainer");
  if (const double s = run.seconds(); std::isfinite(s))
    out += tile("Training time", duration(s), std::to_string(run.steps.size()) + " steps");
  if (const double b = number(in.summary, "peak_rss_bytes"); std::isfinite(b))
    out += tile("Peak memory", format(b / 1e6, number_style::whole) + " <small>MB</small>",
                "resident");
  return out + "</div>\n";
}

std::string heading(const run_lines& run, const report_input& in) {
  std::string badge;
  if (const auto at = in.summary.find("ended"); at != in.summary.end() && at->is_string()) {
    const auto how = at->get<std::string>();
    badge = "<span class=\"badge" + std::string(how == "done" ? "" : " bad") + "\">" + escape(how)
            + "</span>";
  }
  const auto whole = [&](const char* path) {
    return format(option(in.config, path), number_style::whole);
  };
  std::string about = std::to_string(run.steps.size()) + " training steps";
  if (in.config.is_object() && in.config.contains("rollout"))
    about += " of B = " + whole("rollout.batch_size") + " rollouts in groups of "
             + whole("rollout.group_size") + ", staleness bound η = " + whole("rollout.eta")
             + ", seed " + (in.config.contains("seed") ? in.config["seed"].dump() : "–") + ".";
  return "<header><h1>" + escape(in.title) + badge + "</h1><p>" + escape(about) + "</p></header>\n";
}

// -- charts ----------------------------------------------------------------------------------------

std::string learning_charts(const run_lines& run, const json& config) {
  auto reward = run.step("mean", "reward_mean", 1);
  for (const auto* line : run.steps)
    reward.spread.push_back(number(*line, "reward_std"));
  if (reward.spread.size() != reward.points.size()
      || std::none_of(reward.spread.begin(), reward.spread.end(),
                      [](double s) { return std::isfinite(s); }))
    reward.spread.clear();
  reward.smooth = true;
  const double eta = option(config, "rollout.eta");
  chart staleness{"Staleness", "Versions between sampling a token and training on it",
                  {run.step("largest", "staleness_max", 2), run.smooth("mean", "staleness_mean", 1)}};
  staleness.curves[0].peaks = true;
  if (std::isfinite(eta))
    staleness.references.push_back({eta, "η = " + format(eta, number_style::whole)});
  std::string out
    = draw(chart{"Accuracy", "Held-out prompts, and the training batches as they were sampled",
                 {run.eval("held out", 2), run.smooth("training", "accuracy", 1)}, {},
                 number_style::percent, true, 1});
  out += draw(chart{"Reward", "Of the rollouts in each batch: mean, and ± one standard deviation",
                    {reward}});
  out += draw(staleness);
  const auto counts = run.staleness();
  double sum = 0;
  for (double c : counts)
    sum += c;
  report::bar_chart bars{"Trained tokens by staleness", "Share of all tokens that reached the loss",
                         "versions", {}};
  const auto last = std::max<double>(double(counts.size()) - 1, std::isfinite(eta) ? eta : 0);
  for (std::size_t k = 0; sum > 0 && k <= std::size_t(std::min(last, 40.0)); ++k)
    bars.bars.push_back({std::to_string(k), k < counts.size() ? counts[k] / sum : 0,
                         std::isfinite(eta) && double(k) > eta});
  return out + draw(bars);
}

std::string stream_charts(const run_lines& run) {
  const auto percent = number_style::percent;
  auto out = draw(chart{"Throughput", "Tokens per second",
                        {run.smooth("generated", "generated_tokens_per_s", 1),
                         run.smooth("trained", "trained_tokens_per_s", 2)}});
  out += draw(chart{"Idle shares", "Time of each step with nothing to do",
                    {run.smooth("generators", "generator_idle", 1),
                     run.smooth("trainer", "trainer_idle", 2),
                     run.smooth("bubble", "bubble", 3)}, {}, percent});
  out += draw(chart{"Pause of a weight swap", "Time in which a generator decoded nothing",
                    {run.smooth("swap and re-prefill", "pause_s", 1)}, {}, number_style::seconds});
  out += draw(chart{"Answer length", "Mean generated tokens",
                    {run.smooth("tokens", "length_mean", 1)}});
  out += draw(chart{"Truncated answers", "Share that ran into the token limit",
                    {run.smooth("truncated", "truncated", 1)}, {}, percent});
  return out;
}

std::string policy_charts(const run_lines& run, const json& config) {
  const auto percent = number_style::percent;
  chart kl{"KL divergence", "Nats per trained token",
           {run.smooth("generator from trainer", "kl_infer_train", 1)}};
  const json::json_pointer reference("/algorithm/kl/reference");
  if (config.contains(reference) && config.at(reference) != "none")
    kl.curves.push_back(run.smooth("from the reference", "kl_reference", 2));
  auto out = draw(kl);
  out += draw(chart{"Entropy", "Nats, of the policy at trained tokens",
                    {run.smooth("entropy", "entropy", 1)}});
  out += draw(chart{"Gradient norm", "Before clipping", {run.smooth("norm", "grad_norm", 1)}});
  out += draw(chart{"Clipped and masked", "Shares of trained tokens",
                    {run.smooth("clipped, advantage > 0", "clip_fraction_positive", 1),
                     run.smooth("clipped, advantage < 0", "clip_fraction_negative", 2),
                     run.smooth("masked", "mask_fraction", 3)}, {}, percent});
  out += draw(chart{"Effective sample size", "Of the importance weights; 100% is on-policy",
                    {run.smooth("share", "ess", 1)}, {}, percent, false});
  out += draw(chart{"Loss", "Mean over each step", {run.smooth("loss", "loss", 1)}, {},
                    number_style::plain, false});
  out += draw(chart{"Learning rate", "", {run.step("rate", "learning_rate", 1)}});
  return out;
}

std::string warmup_charts(const run_lines& run) {
  auto loss = run.of(run.warmup, "loss", "loss", 1);
  auto accuracy = run.of(run.warmup, "token accuracy", "token_accuracy", 1);
  loss.smooth = accuracy.smooth = true;
  return draw(chart{"Warm-up loss", "Negative log-likelihood of demonstrations, nats a token",
                    {loss}})
         + draw(chart{"Warm-up token accuracy", "Demonstration tokens that are the likeliest",
                      {accuracy}, {}, number_style::percent, true, 1});
}

std::string section(const std::string& title, const std::string& charts) {
  return charts.empty() ? std::string{}
                        : "<h2>" + escape(title) + "</h2>\n<div class=grid>\n" + charts + "</div>\n";
}

// -- tables ----------------------------------------------------------------------------------------

/// Why rollouts ended in a state, the most frequent first: texts of programs and plugins are among the
/// reasons, so there may be many.
std::string reason_rows(const json& summary, const std::string& state) {
  constexpr std::size_t most = 8;
  std::vector<std::pair<double, std::string>> reasons;
  if (const auto at = summary.find("reasons"); at != summary.end() && at->is_object())
    for (const auto& [reason, n] : at->items())
      if (reason.starts_with(state + ": ") && n.is_number())
        reasons.emplace_back(-n.get<double>(), reason.substr(state.size() + 2));
  std::sort(reasons.begin(), reasons.end());
  std::string out;
  for (std::size_t i = 0; i < std::min(most, reasons.size()); ++i)
    out += "<tr class=why><td>" + escape(reasons[i].second) + "</td><td>" + count(-reasons[i].first)
           + "</td></tr>";
  if (reasons.size() > most)
    out += "<tr class=why><td>" + std::to_string(reasons.size() - most)
           + " more reasons, in summary.json</td><td></td></tr>";
  return out;
}

std::string ledger_table(const json& summary) {
  const auto at = summary.find("rollouts");
  if (at == summary.end() || !at->is_object())
    return {};
  const double admitted = number(*at, "admitted");
  double ended = 0;
  std::string rows = "<tr><td>admitted</td><td>" + count(admitted) + "</td></tr>";
  for (const char* state : {"trained", "dropped", "filtered", "failed", "in_flight"}) {
    const double n = number(*at, state);
    if (!std::isfinite(n))
      continue;
    ended += n;
    rows += "<tr><td>" + std::string(state == std::string_view("in_flight") ? "in flight" : state)
            + "</td><td><span>" + format(admitted > 0 ? n / admitted : none, number_style::percent)
            + "&emsp;</span>" + count(n) + "</td></tr>" + reason_rows(summary, state);
  }
  const auto verdict = ended == admitted ? "Every rollout is accounted for."
                                         : "The sums differ: this is a bug, report it.";
  return "<h2>What became of every rollout</h2>\n<div class=panel><table>" + rows
         + "</table><p style=\"margin:12px 0 0;color:var(--faint);font-size:13px\">" + verdict
         + "</p></div>\n";
}

} // namespace

std::string make_report(const report_input& input) {
  const run_lines run(input);
  std::string out = "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
                    "<meta name=viewport content=\"width=device-width,initial-scale=1\">\n<title>"
                    + escape(input.title) + " · Millrace</title>\n<style>" + report::style
                    + "</style>\n</head>\n<body>\n<main>\n";
  out += heading(run, input) + tiles(run, input);
  out += section("Learning", learning_charts(run, input.config));
  out += section("The stream", stream_charts(run));
  out += section("The policy", policy_charts(run, input.config));
  out += section("Warm-up", warmup_charts(run));
  if (run.steps.empty())
    out += "<div class=panel>No training step has been recorded.</div>\n";
  out += ledger_table(input.summary);
  if (!input.config_text.empty())
    out += "<h2>Configuration</h2>\n<div class=panel><details><summary>All options as the run used "
           "them</summary><pre>" + escape(input.config_text) + "</pre></details></div>\n";
  out += "<footer>Made by Millrace from metrics.jsonl, summary.json and config.json beside this "
         "page.</footer>\n</main>\n<script>" + std::string(report::script)
         + "</script>\n</body>\n</html>\n";
  return out;
}

void write_report(const run_directory& run) {
  report_input in;
  in.title = std::filesystem::absolute(run.path()).lexically_normal().filename().string();
  if (in.title.empty())
    in.title = "run";
  const auto load = [](const std::filesystem::path& file) {
    auto value = std::filesystem::exists(file) ? json::parse(read_file(file), nullptr, false)
                                               : json::object();
    return value.is_object() ? value : json::object();
  };
  in.config = load(run.config_file());
  in.summary = load(run.summary_file());
  if (std::filesystem::exists(run.metrics_file()))
    in.lines = read_metrics(run.metrics_file());
  if (std::filesystem::exists(run.config_file()))
    in.config_text = read_file(run.config_file());
  write_file_atomically(run.report_file(), make_report(in));
}

} // namespace millrace
