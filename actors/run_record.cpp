#include "actors/run_record.hpp"

#include "runtime/clock.hpp"
#include "runtime/log.hpp"
#include "runtime/metrics/process.hpp"
#include "runtime/short_forms.hpp"

#include <algorithm>

namespace millrace {

namespace {

double number(const nlohmann::ordered_json& line, const char* key) {
  auto it = line.find(key);
  return it != line.end() && it->is_number() ? it->get<double>() : 0;
}

} // namespace

run_record::run_record(const settings& s, run_directory& directory, console& screen, double now)
  : settings_(s), directory_(directory), screen_(screen), process_began_(now) {
}

run_record::generator_sums run_record::sums() const {
  auto out = retired_;
  for (const auto& [name, g] : generators_) {
    out.tokens += g.generated_tokens;
    out.busy_s += g.busy_s;
    out.idle_s += g.idle_s;
    out.paused_s += g.paused_s;
    out.reprefilled += g.reprefilled_tokens;
    out.discarded += g.discarded_tokens;
  }
  return out;
}

void run_record::write(const nlohmann::ordered_json& line, std::string_view group) {
  directory_.append_metrics(line);
  std::map<std::string, double> values;
  for (const auto& [key, value] : line.items())
    if (value.is_number() && key != "step")
      latest_[key] = values[std::string(group) + "/" + key] = value.get<double>();
  if (!settings_.log.tensorboard)
    return;
  auto wall = real_clock().wall();
  auto step = line.at("step").get<std::int64_t>();
  if (!tensorboard_)
    tensorboard_.emplace(directory_.path() / "tensorboard", wall, steps_before_);
  tensorboard_->scalars(step, wall, values);
  if (auto staleness = line.find("staleness"); staleness != line.end() && staleness->is_array())
    tensorboard_->histogram(step, wall, "train/token_staleness",
                            staleness->get<std::vector<std::int64_t>>());
}

/// Means over the weight swaps of this step: what was interrupted, and for how long.
nlohmann::ordered_json run_record::sync_figures() const {
  swap_report sum;
  for (const auto& s : swaps_) {
    sum.pause_s += s.pause_s;
    sum.total_s += s.total_s;
    sum.pull_s += s.pull_s;
    sum.verify_s += s.verify_s;
    sum.load_s += s.load_s;
    sum.quantise_s += s.quantise_s;
    sum.prefill_s += s.prefill_s;
    sum.bytes += s.bytes;
    sum.running += s.running;
  }
  auto n = std::max(1.0, static_cast<double>(swaps_.size()));
  return {{"pause_s", sum.pause_s / n},
          {"sync_total_s", sum.total_s / n},
          {"sync_pull_s", sum.pull_s / n},
          {"sync_verify_s", sum.verify_s / n},
          {"sync_load_s", sum.load_s / n},
          {"sync_quantise_s", sum.quantise_s / n},
          {"sync_prefill_s", sum.prefill_s / n},
          {"sync_bytes", static_cast<double>(sum.bytes) / n},
          {"sync_interrupted", static_cast<double>(sum.running) / n},
          {"swaps", swaps_.size()}};
}

void run_record::begin(double now) {
  began_ = last_step_at_ = shown_.at = now;
}

void run_record::generator(const generator_report& report) {
  auto& known = generators_[report.generator];
  if (report.generated_tokens < known.generated_tokens) {
    // A successor of that name counts from 0.
    retired_.tokens += known.generated_tokens;
    retired_.busy_s += known.busy_s;
    retired_.idle_s += known.idle_s;
    retired_.paused_s += known.paused_s;
    retired_.reprefilled += known.reprefilled_tokens;
    retired_.discarded += known.discarded_tokens;
  }
  for (const auto& s : report.swaps)
    if (s.from >= version{0})
      swaps_.push_back(s);
  known = report;
  generated_tokens_ = generated_before_ + sums().tokens;
}

void run_record::count(const step_report& report) {
  ++steps_;
  trained_tokens_ += static_cast<std::int64_t>(report.values.at("trained_tokens"));
  if (report.staleness.size() > staleness_.size())
    staleness_.resize(report.staleness.size());
  for (std::size_t i = 0; i < report.staleness.size(); ++i)
    staleness_[i] += report.staleness[i];
}

void run_record::step(const step_report& report, double now) {
  count(report);
  const auto now_sums = sums();
  auto span = std::max(now - last_step_at_, 1e-9);
  auto busy = now_sums.busy_s - last_.busy_s;
  auto idle = now_sums.idle_s - last_.idle_s;
  auto paused = now_sums.paused_s - last_.paused_s;
  auto waited = report.values.count("trainer_wait_s") ? report.values.at("trainer_wait_s") : 0.0;
  nlohmann::ordered_json line{{"kind", "step"},
                              {"step", report.published.value},
                              {"time_s", time_before_ + now - began_},
                              {"wall_s", wall_s(now)}};
  for (const auto& [key, value] : report.values)
    line[key] = value;
  auto all = busy + idle + paused;
  auto generator_idle = all > 0 ? std::clamp(idle / all, 0.0, 1.0) : 0.0;
  auto trainer_idle = std::clamp(waited / span, 0.0, 1.0);
  line["generated_tokens_per_s"] = static_cast<double>(now_sums.tokens - last_.tokens) / span;
  line["trained_tokens_per_s"] = report.values.at("trained_tokens") / span;
  line["generator_idle"] = generator_idle;
  line["trainer_idle"] = trainer_idle;
  line["bubble"] = (generator_idle + trainer_idle) / 2;
  line.update(sync_figures());
  line["reprefilled_tokens"] = now_sums.reprefilled - last_.reprefilled;
  line["discarded_tokens"] = now_sums.discarded - last_.discarded;
  line["eta"] = settings_.rollout.eta;
  line["generated_tokens"] = generated_tokens_;
  line["staleness"] = report.staleness;
  const auto usage = read_process_usage();
  line["rss_bytes"] = usage.resident_bytes;
  line["peak_rss_bytes"] = std::max(peak_before_, usage.peak_resident_bytes);
  write(line, "train");
  last_ = now_sums;
  last_step_at_ = now;
  swaps_.clear();
  shown_.trained += report.values.at("trained_tokens");
  shown_.waited_s += waited;
  if (report.published.value % settings_.run.log_every == 0) {
    screen_.line(line_of(line, now_sums, now));
    shown_ = {now, now_sums, 0, 0};
  }
  if (++steps_here_ == 1)
    first_step_at_ = now;
  const auto step = report.published.value, steps = settings_.run.steps;
  const auto left = static_cast<double>(steps - step);
  auto at = printed("step %d/%d", step, steps);
  if (steps_here_ > 1 && left > 0)
    at += ", about " + short_duration((now - first_step_at_) / (steps_here_ - 1) * left) + " left";
  screen_.progress("training", static_cast<double>(step) / steps, at);
}

/// Rates and shares are over all steps since the line before: generators report in bursts.
std::string run_record::line_of(const nlohmann::ordered_json& line, const generator_sums& sums,
                                double now) const {
  auto span = std::max(now - shown_.at, 1e-9);
  auto busy = sums.busy_s - shown_.generators.busy_s;
  auto idle = sums.idle_s - shown_.generators.idle_s;
  auto all = busy + idle + sums.paused_s - shown_.generators.paused_s;
  return printed("step %4.0f  reward %.3f  accuracy %.3f  staleness %.2f/%.0f  ",
                 number(line, "step"), number(line, "reward_mean"), number(line, "accuracy"),
                 number(line, "staleness_mean"), number(line, "staleness_max"))
         + "generated "
         + short_number(static_cast<double>(sums.tokens - shown_.generators.tokens) / span)
         + "/s  trained " + short_number(shown_.trained / span) + "/s"
         + printed("  idle gen %.0f%% train %.0f%%",
                   all > 0 ? 100 * std::clamp(idle / all, 0.0, 1.0) : 0.0,
                   100 * std::clamp(shown_.waited_s / span, 0.0, 1.0));
}

void run_record::evaluated(const evaluation_report& report, std::string_view when) {
  note({report.accuracy, report.v.value});
  write({{"kind", "eval"},
         {"step", report.v.value},
         {"eval_accuracy", report.accuracy},
         {"reward_mean", report.reward_mean},
         {"length_mean", report.length_mean},
         {"truncated", report.truncated},
         {"answers", report.answers},
         {"not_judged", report.not_judged}},
        "eval");
  screen_.line(printed("held-out accuracy %.3f  (%lld answers, %s)", report.accuracy,
                       static_cast<long long>(report.answers), std::string(when).c_str()));
  if (report.not_judged > 0)
    log::warning("evaluation", printed("%lld of %lld answers could not be judged, and count as wrong; "
                                       "the last one: ",
                                       static_cast<long long>(report.not_judged),
                                       static_cast<long long>(report.answers))
                                 + report.failure);
}

void run_record::warmed_up(std::int64_t step, const std::map<std::string, double>& values) {
  nlohmann::ordered_json line{{"kind", "warmup"}, {"step", step}};
  for (const auto& [key, value] : values)
    line[key] = value;
  write(line, "warmup");
}

void run_record::note(evaluated_accuracy e) {
  if (!first_evaluation_)
    first_evaluation_ = e;
  last_evaluation_ = e;
}

void run_record::used_before(const nlohmann::json& told) {
  wall_before_ = std::max(wall_before_, told.value("wall_s", 0.0));
  peak_before_ = std::max(peak_before_, told.value("peak_rss_bytes", std::int64_t{0}));
}

void run_record::resume(const run_directory::rewound_metrics& lines, const nlohmann::json& summary) {
  used_before(summary);
  for (const auto& l : lines.dropped)
    used_before(l);
  for (const auto& l : lines.kept) {
    used_before(l);
    auto kind = l.value("kind", "");
    if (kind == "eval" && l.contains("eval_accuracy"))
      note({l["eval_accuracy"].get<double>(), l.value("step", std::int64_t{0})});
    if (kind != "step")
      continue;
    step_report r;
    r.values["trained_tokens"] = l.value("trained_tokens", 0.0);
    r.staleness = l.value("staleness", std::vector<std::int64_t>{});
    count(r);
    steps_before_ = l.value("step", steps_before_);
    generated_before_ = l.value("generated_tokens", generated_before_);
    time_before_ = l.value("time_s", time_before_);
  }
  generated_tokens_ = generated_before_;
  // What the dropped lines told, should this process die before it has a step to tell.
  directory_.append_metrics({{"kind", "resume"}, {"step", steps_}, {"wall_s", wall_before_},
                             {"peak_rss_bytes", peak_before_}});
}

nlohmann::ordered_json run_record::summary(double now) const {
  std::int64_t tokens = 0, weighted = 0, largest = 0;
  for (std::size_t i = 0; i < staleness_.size(); ++i) {
    tokens += staleness_[i];
    weighted += staleness_[i] * static_cast<std::int64_t>(i);
    if (staleness_[i] > 0)
      largest = static_cast<std::int64_t>(i);
  }
  nlohmann::ordered_json out;
  if (first_evaluation_)
    out = {{"accuracy_before", first_evaluation_->accuracy},
           {"accuracy_after", last_evaluation_->accuracy},
           {"accuracy_after_step", last_evaluation_->step}};
  else
    out = {{"accuracy_before", nullptr}, {"accuracy_after", nullptr}, {"accuracy_after_step", nullptr}};
  out["eta"] = settings_.rollout.eta;
  out["staleness_max"] = largest;
  out["staleness_mean"] = tokens > 0 ? static_cast<double>(weighted) / static_cast<double>(tokens) : 0.0;
  out["staleness_histogram"] = staleness_;
  out["steps"] = steps_;
  out["generated_tokens"] = generated_tokens_;
  out["trained_tokens"] = trained_tokens_;
  out["seed"] = settings_.seed;
  out["wall_s"] = wall_s(now);
  out["peak_rss_bytes"] = std::max(peak_before_, read_process_usage().peak_resident_bytes);
  return out;
}

} // namespace millrace
