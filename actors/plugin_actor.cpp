#include "actors/plugin_actor.hpp"

#include "actors/shell.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/metrics/metric.hpp"
#include "runtime/plugins/json_parameters.hpp"
#include "runtime/scratch_folder.hpp"

#include <list>

namespace millrace {

namespace {

std::string metric_name(const std::string& kind, std::string_view name) {
  std::string out = "millrace_" + kind + "_" + std::string(name);
  for (auto& c : out)
    if (c == '-' || c == '.' || c == ' ')
      c = '_';
  return out;
}

/// Of every plugin's actor.
struct own_metrics {
  counter shown, vetoed, errors;

  explicit own_metrics(const std::string& kind)
    : shown(kind, metric_name(kind, "groups_shown_total"), "groups", "Groups that it was shown"),
      vetoed(kind, metric_name(kind, "groups_vetoed_total"), "groups",
             "Groups that it kept from training"),
      errors(kind, metric_name(kind, "exceptions_total"), "exceptions",
             "Exceptions that it threw; the group or step goes on without it") {}
};

plugin::finish to_plugin(finish_reason r) {
  return r == finish_reason::stop ? plugin::finish::stop
                                  : r == finish_reason::length ? plugin::finish::length
                                                               : plugin::finish::cancelled;
}

} // namespace

void declare_plugin_actor(const std::string& kind) { own_metrics declared(kind); }

/// Counters and gauges are declared while the factory runs; the actor's place on the board is made
/// after it, with all of them.
class plugin_actor_context final : public plugin::actor_context {
public:
  plugin_actor_context(std::string kind, std::string who, std::string run_directory,
                       std::function<double()> now)
    : own(kind), kind_(std::move(kind)), who_(std::move(who)),
      run_directory_(std::move(run_directory)), now_(std::move(now)) {}

  plugin::counter& count(std::string_view name, std::string_view help) override {
    return declare<counter_handle>(counters_, std::string(name) + "_total", help);
  }
  plugin::gauge& show(std::string_view name, std::string_view help) override {
    return declare<gauge_handle>(gauges_, std::string(name), help);
  }
  void log(plugin::level how, std::string_view text) override {
    log::write(static_cast<log_level>(how), who_, text);
  }
  [[nodiscard]] const std::string& run_directory() const override { return run_directory_; }
  [[nodiscard]] double now() const override { return now_(); }

  /// From now on values go there; those from before are carried over.
  void show_on(metric_set& metrics) {
    metrics_ = &metrics;
    for (auto& c : counters_)
      c.flush();
    for (auto& g : gauges_)
      g.flush();
  }

  own_metrics own;

private:
  struct counter_handle final : plugin::counter {
    counter_handle(plugin_actor_context& c, std::string owner, std::string name, std::string help)
      : context(c), metric(std::move(owner), std::move(name), "events", std::move(help)) {}
    void add(double amount) override {
      if (context.metrics_)
        context.metrics_->add(metric, amount);
      else
        before += amount;
    }
    void flush() { add(std::exchange(before, 0)); }
    plugin_actor_context& context;
    millrace::counter metric;
    double before = 0;
  };
  struct gauge_handle final : plugin::gauge {
    gauge_handle(plugin_actor_context& c, std::string owner, std::string name, std::string help)
      : context(c), metric(std::move(owner), std::move(name), "value", std::move(help)) {}
    void set(double value) override {
      before = value;
      if (context.metrics_)
        context.metrics_->set(metric, value);
    }
    void flush() { set(before); }
    plugin_actor_context& context;
    millrace::gauge metric;
    double before = 0;
  };

  template <class Handle>
  Handle& declare(std::list<Handle>& all, const std::string& name, std::string_view help) {
    if (metrics_)
      throw user_error("the metric " + name + " is declared after the factory has returned");
    const auto known = catalogue_problems().size();
    all.emplace_back(*this, kind_, metric_name(kind_, name), std::string(help));
    if (const auto now = catalogue_problems(); now.size() > known)
      throw user_error(now.back());
    return all.back();
  }

  std::string kind_, who_, run_directory_;
  std::function<double()> now_;
  std::list<counter_handle> counters_; // addresses stay
  std::list<gauge_handle> gauges_;
  metric_set* metrics_ = nullptr;
};

void try_plugin_actor(const plugins::registered<plugin::actor_factory>& made_by,
                      const plugin_actor_options& options) {
  const scratch_folder files("millrace-check");
  plugin_actor_context context(made_by.from.name, options.name, files.path().string(),
                               [] { return 0.0; });
  static_cast<void>(plugins::make(made_by, options.params, options.where, context));
}

plugin_actor_state::~plugin_actor_state() {
  if (actor_)
    safely("on_end() threw", [&] { actor_->on_end(); });
  actor_.reset(); // before its context
}

caf::behavior plugin_actor_state::start(plugins::registered<plugin::actor_factory> made_by,
                                        plugin_actor_options options, const caf::actor& controller,
                                        const caf::actor& recorder) {
  report_exceptions(self_);
  from_ = made_by.from;
  options_ = std::move(options);
  context_ = std::make_shared<plugin_actor_context>(from_.name, options_.name,
                                                    options_.run_directory,
                                                    [self = self_] { return now_s(self); });
  actor_ = plugins::make(made_by, options_.params, options_.where, *context_);
  seen_ = {self_, from_.name, options_.name};
  context_->show_on(seen_.metrics());
  seen_.waiting("controller", "groups to look at");
  caf::actor self{self_};
  insist(self_, controller, options_.join_every_s,
         caf::make_message(filter_atom::value, options_.name, self));
  insist(self_, recorder, options_.join_every_s, caf::make_message(filter_atom::value, self));
  self_->delayed_send(self_, after(options_.tick_s), tick_atom::value);
  return {
    [this](const buffer_groups& groups) { return judge(groups); },
    [this](const step_report& report) { tell(report); },
    [this](tick_atom) {
      self_->delayed_send(self_, after(options_.tick_s), tick_atom::value);
      safely("on_tick() threw", [&] { actor_->on_tick(); });
    },
    [this](drain_atom) { self_->quit(caf::exit_reason::user_shutdown); },
    answer_introspection(seen_),
  };
}

/// False when it threw; told in the log the first few times.
template <class Call>
bool plugin_actor_state::safely(const char* doing, Call&& call) {
  try {
    call();
    return true;
  } catch (...) {
    constexpr int told = 5;
    if (++errors_ <= told)
      log::error(options_.name, from_.text() + ": " + doing + ": " + plugins::thrown_text()
                                  + (errors_ == told ? " (further ones are only counted)" : ""));
    if (context_)
      seen_.metrics().add(context_->own.errors);
    return false;
  }
}

filter_verdict plugin_actor_state::judge(const buffer_groups& groups) {
  seen_.working("looking at groups");
  filter_verdict out;
  for (const auto& g : groups.groups) {
    std::vector<plugin::scored_answer> answers;
    answers.reserve(g.rollouts.size());
    for (const auto& r : g.rollouts)
      answers.push_back({r.text, r.reward, r.correct, to_plugin(r.finish), r.prompt_length, r.tokens,
                         r.behaviour_logp, r.versions});
    std::string reason;
    safely("on_group() threw", [&] {
      reason = actor_->on_group({g.group, g.question.text, g.question.answer, answers});
    });
    seen_.metrics().add(context_->own.shown);
    if (reason.empty())
      continue;
    seen_.metrics().add(context_->own.vetoed);
    out.vetoed.push_back(g.group);
    out.reasons.push_back(from_.name + ": " + reason.substr(0, 120));
  }
  seen_.waiting("controller", "groups to look at");
  return out;
}

void plugin_actor_state::tell(const step_report& report) {
  const std::vector<std::pair<std::string, double>> values(report.values.begin(),
                                                           report.values.end());
  safely("on_step() threw", [&] {
    actor_->on_step({report.trained_from.value, report.published.value, values});
  });
}

caf::behavior plugin_actor(caf::stateful_actor<plugin_actor_state>* self,
                           plugins::registered<plugin::actor_factory> made_by,
                           plugin_actor_options options, caf::actor controller,
                           caf::actor recorder) {
  return self->state.start(std::move(made_by), std::move(options), controller, recorder);
}

} // namespace millrace
