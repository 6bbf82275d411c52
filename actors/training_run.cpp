#include "actors/training_run.hpp"

#include "actors/policy_backend.hpp"
#include "actors/stream.hpp"
#include "rollout/tokenized_feed.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/metrics/process.hpp"
#include "runtime/report.hpp"
#include "weightsync/ucx_transport.hpp"

#include <nlohmann/json.hpp>

namespace millrace {

namespace {

/// Weights leave the trainer in the generators' precision: bf16, or 8-bit integers with a scale per
/// row for matrices. The generator computes in fp32 with what arrives.
std::function<dtype(const weightsync::placement&, dtype)> wire_type(weight_dtype generator) {
  if (generator == weight_dtype::fp32)
    return {};
  return [generator](const weightsync::placement& p, dtype own) {
    if (generator == weight_dtype::bf16)
      return dtype::bf16;
    return p.shape.size() == 2 ? dtype::i8 : own;
  };
}

/// Says who waits for whom when nothing has been trained for supervisor.stall_report_s.
class stall_watch {
public:
  stall_watch(const settings& s, double now)
    : batch_size_(s.rollout.batch_size), limit_s_(s.supervisor.stall_report_s),
      progress_at_(now), reported_at_(now), looked_at_(now) {
  }

  void look(stream& running, double now) {
    if (limit_s_ <= 0 || now < looked_at_ + limit_s_ / 4)
      return;
    looked_at_ = now;
    auto ledger = nlohmann::json::parse(running.ledger());
    auto published = ledger["published"].get<std::int64_t>();
    auto idle = now - progress_at_;
    if (published != published_ || idle < limit_s_) {
      if (published != published_)
        progress_at_ = reported_at_ = now;
      published_ = published;
      return;
    }
    if (now < reported_at_ + limit_s_)
      return;
    reported_at_ = now;
    std::string states;
    for (const char* s : {"running", "scoring", "scored", "buffered", "training"})
      states += std::string(states.empty() ? "" : ", ") + std::to_string(ledger[s].get<int>())
                + " " + s;
    auto waits = ledger["waits_for"].get<std::string>();
    auto trains = ledger["training"].get<std::int64_t>() > 0;
    log::warning("stall",
                 "nothing was trained for " + std::to_string(static_cast<int>(idle))
                   + " s; rollouts: " + states + "\ntrainer: "
                   + (trains ? std::string("at work on the step from ")
                             : "waits for a batch of " + std::to_string(batch_size_) + " to leave ")
                   + "v" + std::to_string(published) + "\ncontroller: "
                   + (waits.empty() ? "admits" : "waits for " + waits) + "\nended so far: "
                   + ledger["reasons"].dump());
  }

private:
  std::int64_t batch_size_;
  double limit_s_;
  double progress_at_, reported_at_, looked_at_;
  std::int64_t published_ = -1;
};

/// The parts of a run that outlive the stream's actors.
class training_run {
public:
  explicit training_run(const run_request& request);
  run_outcome execute();

private:
  void open_policy();
  void make_parts();
  void warm_up();
  void evaluate(std::string_view when);
  void check_resumable() const;
  run_outcome train();
  nlohmann::json watch(stream& running, run_outcome& outcome);
  void finish(const std::string& how, const nlohmann::json& ledger);
  [[nodiscard]] bool interrupted() const {
    return request_.interrupted && request_.interrupted();
  }

  const run_request& request_;
  settings options_;
  double began_ = stream_now();
  console screen_;
  run_directory directory_;
  run_record record_;
  std::shared_ptr<trainer::checkpoint_store> checkpoints_;
  std::optional<trainer::checkpoint> resumed_;
  std::shared_ptr<prompt_source> source_;
  std::shared_ptr<const reward> judge_;
  std::shared_ptr<trainer::policy> policy_;
  std::shared_ptr<const model::tokenizer> tokens_;
  std::unique_ptr<evaluation> evaluation_;
  stream_parts parts_;
};

training_run::training_run(const run_request& request)
  : request_(request), options_(request.options), screen_(request.quiet),
    directory_(request.directory,
               request.resume ? run_directory::mode::resume : run_directory::mode::fresh),
    record_(options_, directory_, screen_) {
  log::set_level(options_.log.level);
  log::set_file(directory_.log_file());
  screen_.line("run directory: " + directory_.path().string());
  for (const auto& remark : remarks(options_))
    log::warning("configuration", remark);
  for (const auto& remark : trainer::check_algorithm(options_))
    log::warning("configuration", remark);
  checkpoints_ = std::make_shared<trainer::checkpoint_store>(
    directory_.path() / "checkpoints", options_.run.keep_checkpoints,
    [](const std::string& text) { log::warning("checkpoints", text); });
}

void training_run::open_policy() {
  source_ = make_prompt_source(options_.data, options_.seed);
  judge_ = make_reward(options_.reward);
  if (options_.model.path.empty() && options_.tokenizer.alphabet.empty())
    options_.tokenizer.alphabet = source_->alphabet();
  if (request_.resume) {
    check_resumable();
    resumed_ = checkpoints_->newest();
    if (!resumed_) // it ended before its first checkpoint: from the start
      std::filesystem::remove(directory_.metrics_file());
  }
  directory_.write_config(resolved_json(options_));
  if (resumed_) {
    directory_.rewind_metrics(resumed_->at.value);
    record_.resume(read_metrics(directory_.metrics_file()));
    policy_ = std::make_shared<trainer::policy>(
      trainer::policy::load(options_, resumed_->folder));
    screen_.line("going on from " + to_string(resumed_->at) + " in "
                 + resumed_->folder.filename().string());
  } else {
    policy_ = std::make_shared<trainer::policy>(trainer::policy::create(options_));
  }
  // The policy lives as long as its tokenizer is used.
  tokens_ = {policy_, &policy_->tokenizer()};
}

/// What the ledger and the random streams of the first part depend on must not change under it.
void training_run::check_resumable() const {
  if (!std::filesystem::exists(directory_.config_file()))
    return;
  auto was = read_json_file(directory_.config_file());
  auto now = nlohmann::json::parse(resolved_json(options_));
  for (const char* path : {"/seed", "/deterministic", "/data", "/tokenizer", "/rollout/eta",
                           "/rollout/batch_size", "/rollout/group_size"}) {
    nlohmann::json::json_pointer at(path);
    if (was.contains(at) && was[at] != now[at])
      throw user_error("--resume: " + std::string(path + 1) + " was " + was[at].dump()
                       + " and is now " + now[at].dump() + "; a run goes on only with what it "
                       "began with. Set it back, or start a new run");
  }
}

void training_run::make_parts() {
  auto context = policy_->config().max_position_embeddings;
  auto room = context - options_.sampling.max_tokens;
  if (room < 1)
    throw user_error("sampling.max_tokens: found " + std::to_string(options_.sampling.max_tokens)
                     + ", but the model's context is " + std::to_string(context)
                     + " tokens, prompt included");
  parts_.options = options_;
  parts_.model = policy_->config();
  parts_.tokens = tokens_;
  // Before minutes of warm-up: does any prompt fit?
  tokenized_feed(make_prompt_source(options_.data, options_.seed), tokens_, room).next();
  parts_.feed = std::make_shared<tokenized_feed>(source_, tokens_, room);
  parts_.prompts = source_;
  parts_.judge = judge_;
  if (options_.weight_sync.transport == sync_transport::ucx)
    parts_.carrier = std::make_shared<weightsync::ucx_transport>();
  else
    parts_.carrier = std::make_shared<weightsync::local_transport>();
  auto views = policy_->views();
  weightsync::publisher_options o;
  o.lease_s = options_.weight_sync.lease_s;
  o.wire_type = wire_type(options_.generator.dtype);
  parts_.publisher = std::make_shared<weightsync::publisher>(
    *parts_.carrier, weightsync::replicated(views), o);
  parts_.backend = std::make_shared<policy_backend>(policy_, parts_.publisher, checkpoints_,
                                                    stream_now);
  if (resumed_)
    parts_.saved_stream = resumed_->state.at("stream.json");
  evaluation_ = std::make_unique<evaluation>(options_, parts_.model, tokens_, *source_, judge_);
}

void training_run::warm_up() {
  const auto& w = options_.warmup;
  auto stops = tokens_->stop_tokens();
  std::int64_t position = source_->epoch_size() * 1'000'000; // apart from what RL will see next
  for (std::int32_t step = 1; step <= w.steps && !interrupted(); ++step) {
    std::vector<trainer::demonstration> batch;
    while (static_cast<std::int32_t>(batch.size()) < w.batch_size) {
      auto p = source_->at(position++);
      trainer::demonstration d;
      d.tokens = prompt_tokens(*tokens_, p.text);
      d.prompt_length = static_cast<std::int32_t>(d.tokens.size());
      auto answer = tokens_->encode(source_->demonstration(p));
      d.tokens.insert(d.tokens.end(), answer.begin(), answer.end());
      if (!stops.empty())
        d.tokens.push_back(stops.front());
      batch.push_back(std::move(d));
    }
    auto stats = policy_->warm_up(batch);
    record_.warmed_up(step, {{"loss", stats.loss},
                             {"token_accuracy", stats.token_accuracy},
                             {"grad_norm", stats.grad_norm}});
    char text[96];
    std::snprintf(text, sizeof text, "step %d/%d, loss %.3f, token accuracy %.3f", step, w.steps,
                  stats.loss, stats.token_accuracy);
    screen_.progress("warm-up", static_cast<double>(step) / w.steps, text);
    if (w.target_accuracy > 0 && step % 5 == 0 && step < w.steps
        && evaluation_->run({0}, policy_->views()).accuracy >= w.target_accuracy)
      break;
  }
  screen_.end_progress();
}

void training_run::evaluate(std::string_view when) {
  screen_.progress("evaluating", 0, std::string(when));
  record_.evaluated(evaluation_->run(policy_->current(), policy_->views()), when);
}

/// Waits for the stream's end; the ledger's sums at that moment.
nlohmann::json training_run::watch(stream& running, run_outcome& outcome) {
  stall_watch stalls{options_, stream_now()};
  for (;;) {
    if (auto end = running.wait(0.2)) {
      if (end->empty())
        return nlohmann::json::parse(running.ledger());
      throw std::runtime_error(*end);
    }
    stalls.look(running, stream_now());
    if (outcome == run_outcome::done && interrupted()) {
      outcome = run_outcome::interrupted;
      screen_.line("ending after this step, with a checkpoint (again to end at once)");
      running.drain();
    }
  }
}

run_outcome training_run::train() {
  stream_config config;
  caf::actor_system system{config};
  nlohmann::json ledger;
  auto outcome = run_outcome::done;
  try {
    stream running{system, std::move(parts_), record_};
    if (request_.started)
      request_.started(system, running.supervisor());
    ledger = watch(running, outcome);
  } catch (const std::exception& e) {
    screen_.end_progress();
    log::error("run", e.what());
    finish("failed", nlohmann::json::object());
    throw;
  }
  screen_.end_progress();
  if (outcome == run_outcome::done)
    evaluate("after training");
  finish(outcome == run_outcome::done ? "done" : "interrupted", ledger);
  return outcome;
}

void training_run::finish(const std::string& how, const nlohmann::json& ledger) {
  auto summary = record_.summary();
  nlohmann::ordered_json rollouts;
  for (const char* state : {"admitted", "trained", "dropped", "filtered", "failed", "in_flight"})
    rollouts[state] = ledger.value(state, std::int64_t{0});
  summary["rollouts"] = rollouts;
  summary["reasons"] = ledger.value("reasons", nlohmann::json::object());
  summary["wall_s"] = stream_now() - began_;
  summary["peak_rss_bytes"] = read_process_usage().peak_resident_bytes;
  summary["ended"] = how;
  directory_.write_summary(summary);
  write_report(directory_);
  auto folder = directory_.path().string();
  if (how != "done")
    screen_.line(how + "; go on with: --run-dir " + folder + " --resume");
  char text[128];
  std::snprintf(text, sizeof text, "%d steps in %.0f s", static_cast<int>(record_.steps()),
                stream_now() - began_);
  screen_.line(std::string(text) + "; the report: " + directory_.report_file().string());
}

run_outcome training_run::execute() {
  open_policy();
  make_parts();
  if (!resumed_) {
    if (options_.warmup.enabled)
      warm_up();
    if (interrupted()) {
      screen_.line("interrupted before the first training step: --resume starts from the beginning");
      return run_outcome::interrupted;
    }
    evaluate(options_.warmup.enabled ? "after warm-up, before reinforcement learning"
                                     : "before training");
  }
  return train();
}

} // namespace

run_outcome run_training(const run_request& request) {
  return training_run(request).execute();
}

} // namespace millrace
