#include "rollout/controller.hpp"

#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace millrace {

using enum rollout_state;

std::uint64_t group_seed(std::uint64_t seed, std::int64_t group) {
  auto x = seed + 0x9E3779B97F4A7C15ULL * (static_cast<std::uint64_t>(group) + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

rollout blank_rollout(rollout_id id, const fed_prompt& p) {
  rollout r;
  r.id = id;
  r.prompt_id = p.question.id;
  r.prompt_length = static_cast<std::int32_t>(p.tokens.size());
  r.tokens = p.tokens;
  r.behaviour_logp.assign(p.tokens.size(), 0.0F);
  r.versions.assign(p.tokens.size(), no_version.value);
  return r;
}

rollout_controller::rollout_controller(controller_options options, prompt_feed& feed)
  : options_(std::move(options)), feed_(feed) {
}

// -- generators -----------------------------------------------------------------------------------

std::size_t rollout_controller::generator_up(const std::string& name, std::int64_t capacity) {
  auto it = std::find(names_.begin(), names_.end(), name);
  auto i = static_cast<std::size_t>(it - names_.begin());
  if (it == names_.end()) {
    names_.push_back(name);
    loads_.emplace_back();
  } else {
    generator_down(i);
  }
  loads_[i] = {.up = true, .acknowledged = no_version, .capacity = capacity};
  return i;
}

/// In order of admission, so that what follows does not depend on the hash table.
std::vector<rollout_id> rollout_controller::running_on(std::size_t generator) const {
  std::vector<rollout_id> out;
  for (const auto& [group, record] : groups_)
    for (const auto& s : record.samples)
      if (s.generator == generator)
        out.push_back(s.data.id);
  std::sort(out.begin(), out.end());
  return out;
}

void rollout_controller::generator_down(std::size_t generator) {
  loads_.at(generator).up = false;
  for (auto id : running_on(generator))
    if (find(id) != nullptr && find(id)->generator == generator)
      queue_again(id, "its generator died");
}

void rollout_controller::generator_left(std::string_view name) {
  auto generator = static_cast<std::size_t>(std::find(names_.begin(), names_.end(), name)
                                            - names_.begin());
  if (generator == names_.size())
    return;
  loads_[generator].up = false;
  for (auto id : running_on(generator)) {
    unassign(*find(id));
    pending_.push_back(id);
  }
}

void rollout_controller::generator_acknowledged(std::size_t generator, version v) {
  auto& known = loads_.at(generator).acknowledged;
  known = std::max(known, v);
}

// -- the stream -----------------------------------------------------------------------------------

rollout_controller::sample_record* rollout_controller::find(rollout_id id) {
  auto it = groups_.find(id.group);
  if (it == groups_.end() || id.sample < 0
      || id.sample >= static_cast<std::int32_t>(it->second.samples.size()))
    return nullptr;
  return &it->second.samples[static_cast<std::size_t>(id.sample)];
}

void rollout_controller::progress(const rollout& partial) {
  auto* s = find(partial.id);
  if (s == nullptr || ledger_.state(partial.id) != running || s->data.attempt != partial.attempt)
    return;
  s->deadline = now_ + options_.rollout_timeout_s; // it is being worked on
  if (partial.tokens.size() > s->data.tokens.size())
    s->data = partial;
}

void rollout_controller::finished(rollout done) {
  auto* s = find(done.id);
  if (s == nullptr || ledger_.state(done.id) != running)
    return;
  if (s->data.attempt != done.attempt && s->generator)
    out_.cancel.push_back({*s->generator, done.id}); // an earlier attempt won: stop the other
  if (!s->generator)
    std::erase(pending_, done.id);
  unassign(*s);
  s->data = std::move(done);
  ledger_.move(s->data.id, scoring);
  out_.score.push_back({s->data.id, groups_[s->data.id.group].question.question, s->data.text,
                        s->data.finish});
}

void rollout_controller::generation_failed(rollout_id id, std::int32_t attempt,
                                           const std::string& reason) {
  auto* s = find(id);
  if (s != nullptr && ledger_.state(id) == running && s->generator && s->data.attempt == attempt)
    queue_again(id, reason);
}

void rollout_controller::scored(const score& result) {
  auto* s = find(result.id);
  if (s == nullptr || ledger_.state(result.id) != scoring)
    return;
  s->data.reward = result.reward;
  s->data.correct = result.correct;
  ledger_.move(result.id, rollout_state::scored);
  auto& g = groups_[result.id.group];
  if (++g.scored == options_.group_size)
    join(result.id.group);
}

void rollout_controller::scoring_failed(rollout_id id, const std::string& reason) {
  auto* s = find(id);
  if (s == nullptr || ledger_.state(id) != scoring)
    return;
  if (++s->score_attempts >= options_.max_attempts)
    give_up(id, reason);
  else
    out_.score.push_back({id, groups_[id.group].question.question, s->data.text, s->data.finish});
}

scored_group rollout_controller::payload(const group_record& g, std::int64_t group) const {
  scored_group out{group, g.question.question, {}};
  out.rollouts.reserve(g.samples.size());
  for (const auto& s : g.samples)
    out.rollouts.push_back(s.data);
  return out;
}

void rollout_controller::join(std::int64_t group) {
  auto& g = groups_[group];
  auto same = [&](const sample_record& s) { return s.data.reward == g.samples[0].data.reward; };
  if (options_.filter_zero_variance && std::all_of(g.samples.begin(), g.samples.end(), same)) {
    end_group(group, filtered, "all rewards equal");
    return;
  }
  for (const auto& s : g.samples)
    ledger_.move(s.data.id, buffered);
  out_.deliver.push_back(payload(g, group));
}

void rollout_controller::filter(std::int64_t group, const std::string& reason) {
  if (groups_.contains(group) && ledger_.state({group, 0}) == buffered)
    end_group(group, filtered, reason);
}

void rollout_controller::replay_up() {
  std::vector<std::int64_t> held;
  for (const auto& [group, record] : groups_)
    if (record.scored == options_.group_size)
      held.push_back(group);
  std::sort(held.begin(), held.end());
  for (auto group : held)
    out_.deliver.push_back(payload(groups_[group], group));
}

claim_reply rollout_controller::claim(const claim_request& request) {
  if (request.training_from < published_)
    return {published_, {}, {}};
  published(request.training_from); // only its trainer can ask, so it must have published it
  for (auto group : request.drop)
    if (auto it = groups_.find(group);
        it != groups_.end() && ledger_.state({group, 0}) == buffered)
      end_group(group, dropped, "stale");
  std::vector<std::int64_t> ended;
  for (auto group : request.take) {
    auto it = groups_.find(group);
    auto room = options_.limits.batch_size
                - static_cast<std::int64_t>(claimed_.size()) * options_.group_size;
    if (it == groups_.end())
      ended.push_back(group);
    if (it == groups_.end() || ledger_.state({group, 0}) != buffered || room < options_.group_size)
      continue;
    for (const auto& s : it->second.samples)
      ledger_.move(s.data.id, training);
    claimed_.push_back(group);
  }
  return {published_, claimed_, std::move(ended)};
}

void rollout_controller::published(version v) {
  if (v <= published_)
    return;
  for (auto group : claimed_) {
    for (const auto& s : groups_[group].samples)
      ledger_.move(s.data.id, trained);
    ledger_.forget(group);
    groups_.erase(group);
  }
  claimed_.clear();
  published_ = v;
}

bool rollout_controller::handed_to(std::size_t generator, rollout_id id, std::int32_t attempt) {
  auto* s = find(id);
  return s != nullptr && s->generator == generator && s->data.attempt == attempt;
}

std::vector<in_flight_rollout> rollout_controller::in_flight() const {
  std::vector<in_flight_rollout> out;
  for (const auto& [group, g] : groups_)
    for (const auto& s : g.samples)
      if (ledger_.state(s.data.id) < buffered && s.started >= version{0})
        out.push_back({s.data.id, s.started,
                       s.generator ? std::max(s.started, loads_[*s.generator].acknowledged)
                                   : no_version});
  return out;
}

old_logit_supply rollout_controller::sampled_since(version since) const {
  old_logit_supply out;
  for (const auto& [group, g] : groups_)
    for (const auto& s : g.samples)
      if (ledger_.state(s.data.id) < training && s.data.youngest() >= std::max(since, version{0}))
        out.in_flight.push_back(s.data);
  std::sort(out.in_flight.begin(), out.in_flight.end(),
            [](const rollout& a, const rollout& b) { return a.id < b.id; });
  for (const auto& g : loads_)
    if (g.up && (out.oldest_sampling == no_version || g.acknowledged < out.oldest_sampling))
      out.oldest_sampling = g.acknowledged;
  return out;
}

void rollout_controller::tick(double now) {
  now_ = now;
  std::vector<rollout_id> overdue;
  for (const auto& [group, record] : groups_)
    for (const auto& s : record.samples)
      if (s.generator && s.deadline < now)
        overdue.push_back(s.data.id);
  std::sort(overdue.begin(), overdue.end());
  for (auto id : overdue) {
    auto* s = find(id);
    if (s == nullptr || !s->generator)
      continue; // its group was given up a moment ago
    out_.cancel.push_back({*s->generator, id});
    queue_again(id, "not finished in time");
  }
}

// -- admission ------------------------------------------------------------------------------------

stream_load rollout_controller::load() const {
  const auto& t = ledger_.totals();
  return {t.count(running), t.in_flight() - t.count(running)};
}

void rollout_controller::admit_next() {
  if (!open_) {
    open_ = next_group_++;
    groups_[*open_].question = feed_.next();
    groups_[*open_].samples.reserve(static_cast<std::size_t>(options_.group_size));
  }
  auto& g = groups_[*open_];
  rollout_id id{*open_, static_cast<std::int32_t>(g.samples.size())};
  ledger_.admit(id);
  g.samples.push_back({.data = blank_rollout(id, g.question)});
  pending_.push_back(id);
  if (static_cast<std::int32_t>(g.samples.size()) == options_.group_size)
    open_.reset();
}

bool rollout_controller::assign(rollout_id id, version at_least) {
  auto& g = groups_[id.group];
  auto& s = g.samples[static_cast<std::size_t>(id.sample)];
  at_least = std::max(at_least, s.data.youngest()); // versions within a rollout never go back
  std::optional<std::size_t> sibling;
  if (id.sample > 0)
    sibling = g.samples[static_cast<std::size_t>(id.sample) - 1].generator;
  auto to = route(loads_, at_least, sibling, options_.prefix_slack_tokens);
  if (!to)
    return false;
  s.generator = to;
  auto first = s.data.oldest(); // what it brings with it, or the weights that it starts under
  s.started = first >= version{0} ? first : loads_[*to].acknowledged;
  s.data.attempt = s.attempts++;
  s.deadline = now_ + options_.rollout_timeout_s;
  s.cost = s.data.prompt_length + options_.sampling.max_tokens - s.data.generated();
  loads_[*to].rollouts += 1;
  loads_[*to].tokens += s.cost;
  auto sampling = options_.sampling;
  sampling.seed = group_seed(options_.sampling.seed, id.group);
  out_.assign.push_back({*to, {s.data, sampling}});
  return true;
}

void rollout_controller::unassign(sample_record& s) {
  if (!s.generator)
    return;
  loads_[*s.generator].rollouts -= 1;
  loads_[*s.generator].tokens -= s.cost;
  s.generator.reset();
}

void rollout_controller::queue_again(rollout_id id, const std::string& reason) {
  auto* s = find(id);
  unassign(*s);
  if (++s->failures >= options_.max_attempts)
    give_up(id, reason);
  else
    pending_.push_back(id);
}

void rollout_controller::give_up(rollout_id id, const std::string& reason) {
  unassign(*find(id));
  ledger_.move(id, failed, reason);
  end_group(id.group, dropped, "a sibling failed");
}

void rollout_controller::end_group(std::int64_t group, rollout_state how,
                                   const std::string& reason) {
  auto& g = groups_[group];
  for (auto& s : g.samples) {
    if (s.generator) {
      out_.cancel.push_back({*s.generator, s.data.id});
      unassign(s);
    }
    if (!has_ended(ledger_.state(s.data.id)))
      ledger_.move(s.data.id, how, reason);
  }
  std::erase_if(pending_, [&](rollout_id id) { return id.group == group; });
  if (open_ == group)
    open_.reset();
  ledger_.forget(group);
  groups_.erase(group);
}

controller_actions rollout_controller::take_actions() {
  // Those that wait for a generator come first: they were admitted before.
  auto try_pending = [&] {
    while (!pending_.empty()) {
      auto id = pending_.front();
      auto before = load();
      before.running -= 1; // itself
      if (!assign(id, oldest_start(options_.limits, before, published_)))
        return false;
      pending_.pop_front();
    }
    return true;
  };
  while (try_pending() && admitting_ && admissible(options_.limits, load()) > 0
         && route(loads_, oldest_start(options_.limits, load(), published_), {}, 0))
    admit_next();
  return std::exchange(out_, {});
}

std::string rollout_controller::waits_for() const {
  if (!admitting_)
    return "nothing: admission has stopped";
  if (admissible(options_.limits, load()) == 0)
    return load().running >= options_.limits.max_concurrent
             ? "a running rollout to finish (max_concurrent)"
             : "the trainer to publish " + to_string(published_.next()) + " (budget (η+1)·B used)";
  auto need = oldest_start(options_.limits, load(), published_);
  if (!route(loads_, need, {}, 0))
    return "a generator with room that has acknowledged " + to_string(need);
  return {};
}

// -- resume ---------------------------------------------------------------------------------------

nlohmann::json rollout_controller::save() const {
  nlohmann::json groups = nlohmann::json::array();
  for (const auto& [id, g] : groups_)
    groups.push_back({{"group", id},
                      {"id", g.question.question.id},
                      {"text", g.question.question.text},
                      {"answer", g.question.question.answer},
                      {"tokens", g.question.tokens},
                      {"admitted", g.samples.size()}});
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return a["group"] < b["group"]; });
  const auto& t = ledger_.totals();
  return {{"published", published_.value}, {"next_group", next_group_},
          {"cursor", feed_.cursor()},      {"groups", groups},
          {"admitted", t.admitted},        {"in_state", t.in_state},
          {"reasons", t.reasons}};
}

void rollout_controller::load(const nlohmann::json& saved) {
  ledger_totals totals;
  saved.at("admitted").get_to(totals.admitted);
  saved.at("in_state").get_to(totals.in_state);
  saved.at("reasons").get_to(totals.reasons);
  ledger_.restore(std::move(totals));
  published_ = {saved.at("published").get<std::int32_t>()};
  next_group_ = saved.at("next_group").get<std::int64_t>();
  feed_.seek(saved.at("cursor"));
  groups_.clear();
  pending_.clear();
  claimed_.clear();
  open_.reset();
  for (const auto& g : saved.at("groups")) {
    auto id = g.at("group").get<std::int64_t>();
    auto& record = groups_[id];
    record.question = {{g.at("id"), g.at("text"), g.at("answer")},
                       g.at("tokens").get<std::vector<std::int32_t>>()};
    for (std::int32_t i = 0; i < g.at("admitted").get<std::int32_t>(); ++i) {
      ledger_.admit({id, i});
      record.samples.push_back({.data = blank_rollout({id, i}, record.question)});
      pending_.push_back({id, i});
    }
    if (static_cast<std::int32_t>(record.samples.size()) < options_.group_size)
      open_ = id;
  }
}

} // namespace millrace
