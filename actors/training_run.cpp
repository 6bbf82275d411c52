#include "actors/training_run.hpp"

#include "actors/cluster_head.hpp"
#include "actors/monitor.hpp"
#include "actors/policy_backend.hpp"
#include "actors/stream.hpp"
#include "rollout/tokenized_feed.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/model/torch_device.hpp"
#include "runtime/report.hpp"
#include "runtime/short_forms.hpp"
#include "trainer/memory_estimate.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>

namespace millrace {

namespace {

/// Weights leave the trainer in the generators' precision: bf16, or 8-bit integers with a scale per
/// row for matrices, and stay so there: the generator computes in it. E4M3 is made of bf16 where it
/// arrives: that is the GPU's work.
std::function<dtype(const weightsync::placement&, dtype)> wire_type(weight_dtype generator) {
  if (generator == weight_dtype::fp32)
    return {};
  return [generator](const weightsync::placement& p, dtype own) {
    if (generator == weight_dtype::bf16 || generator == weight_dtype::fp8)
      return dtype::bf16;
    return p.shape.size() == 2 ? dtype::i8 : own;
  };
}

/// The workers of the trainer's process: all, or in a cluster those of its node.
node_actors_settings workers_here(const settings& s) {
  const auto* head = s.cluster.head();
  if (head == nullptr)
    return {.trainer = 1, .generator = s.generator.count, .reward = s.reward.workers, .replay = 1,
            .evaluator = 1};
  auto here = head->actors;
  here.old_logits = 0; // the stream has it, with the trainer's own versions
  auto evaluates = [](const node_settings& n) { return n.actors.evaluator > 0; };
  if (std::none_of(s.cluster.nodes.begin(), s.cluster.nodes.end(), evaluates))
    here.evaluator = 1;
  return here;
}

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
  void start_over();
  void check_resumable() const;
  [[nodiscard]] std::string resuming_command() const;
  run_outcome train();
  run_outcome watch(stream& running, nlohmann::json& ledger);
  [[nodiscard]] std::map<std::string, std::int64_t> node_peaks(std::int64_t own) const;
  void finish(const std::string& how, const nlohmann::json& ledger);
  [[nodiscard]] bool interrupted() const {
    return stop_ || (request_.interrupted && request_.interrupted());
  }
  void stage(const std::string& text) {
    monitor_.stage(text);
    if (cluster_)
      cluster_->stage(text);
  }

  const run_request& request_;
  settings options_;
  double began_ = stream_now();
  console screen_;
  run_directory directory_;
  monitor monitor_;
  run_record record_;
  std::shared_ptr<trainer::checkpoint_store> checkpoints_;
  std::optional<trainer::checkpoint> resumed_;
  nlohmann::json earlier_summary_ = nlohmann::json::object(); ///< where a run goes on
  std::shared_ptr<prompt_source> source_;
  std::shared_ptr<const reward> judge_;
  std::shared_ptr<trainer::policy> policy_;
  std::shared_ptr<const model::tokenizer> tokens_;
  std::unique_ptr<evaluation> evaluation_;
  stream_parts parts_;
  std::atomic<bool> stop_ = false; ///< somebody asked the cluster to end
  std::unique_ptr<cluster_head> cluster_;
};

training_run::training_run(const run_request& request)
  : request_(request), options_(request.options), screen_(request.quiet),
    directory_(request.directory,
               request.resume ? run_directory::mode::resume : run_directory::mode::fresh),
    monitor_(options_, directory_.path(), stream_now), record_(options_, directory_, screen_, began_) {
  log::set_level(options_.log.level);
  log::set_file(directory_.log_file());
  screen_.line("run directory: " + directory_.path().string());
  if (auto url = monitor_.url(); !url.empty())
    screen_.line("watch it at " + url + " or with: millrace top " + directory_.path().string());
  for (const auto& remark : remarks(options_))
    log::warning("configuration", remark);
  for (const auto& remark : trainer::check_algorithm(options_))
    log::warning("configuration", remark);
  if (const auto shape = trainer::model_shape(options_)) {
    const auto needs = trainer::total(trainer::run_memory(*shape, options_));
    if (const auto has = trainer::physical_memory_bytes(); needs > has)
      log::warning("memory", "up to " + trainer::bytes_text(needs) + " may be needed (`millrace check` "
                               "tells for what), and this machine has " + trainer::bytes_text(has));
  }
  if (request.cluster)
    cluster_ = std::make_unique<cluster_head>(options_, monitor_.tree(), [this] { stop_ = true; },
                                              [this] { return monitor_.step(); });
  else
    options_.cluster.nodes.clear();
  checkpoints_ = std::make_shared<trainer::checkpoint_store>(
    directory_.path() / "checkpoints", options_.run.keep_checkpoints,
    [](const std::string& text) { log::warning("checkpoints", text); }, options_.run.keep_best);
}

/// A damaged one is no reason not to go on: the checkpoint has all that training needs.
static nlohmann::json earlier_summary(const std::filesystem::path& file) {
  try {
    auto j = read_json_file(file);
    // What is read of it later must be there as it was written, or not at all.
    static_cast<void>(j.value("ended", std::string()));
    static_cast<void>(j.value("wall_s", 0.0) + j.value("peak_rss_bytes", 0.0));
    static_cast<void>(j.value("node_peak_rss_bytes", std::map<std::string, std::int64_t>{}));
    return j;
  } catch (const std::exception& e) {
    log::warning("run", file.string() + ": is damaged (" + e.what() + "); the new one counts of earlier "
                        "processes only what metrics.jsonl tells");
    return nlohmann::json::object();
  }
}

void training_run::open_policy() {
  source_ = make_prompt_source(options_.data, options_.seed);
  judge_ = make_reward(options_.reward);
  if (options_.model.path.empty() && options_.tokenizer.alphabet.empty())
    options_.tokenizer.alphabet = source_->alphabet();
  if (request_.resume) {
    resumed_ = checkpoints_->newest();
    if (resumed_ && std::filesystem::exists(directory_.summary_file()))
      earlier_summary_ = earlier_summary(directory_.summary_file());
    if (resumed_)
      check_resumable();
    else
      start_over();
  }
  directory_.write_config(resolved_json(options_));
  if (options_.algorithm.snapshot.folder.empty())
    options_.algorithm.snapshot.folder = directory_.path() / "versions";
  if (resumed_) {
    record_.resume(directory_.rewind_metrics(resumed_->at.value), earlier_summary_);
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

/// A run that ended before its first checkpoint, or lost them: what it measured is put aside.
void training_run::start_over() {
  log::warning("checkpoints", "there is none in " + (directory_.path() / "checkpoints").string()
                                + ": starting from the beginning");
  if (std::filesystem::exists(directory_.metrics_file()))
    std::filesystem::rename(directory_.metrics_file(),
                            directory_.path() / "metrics.before-resume.jsonl");
}

std::string training_run::resuming_command() const {
  return std::string("millrace ") + (request_.cluster ? "up" : "run") + " --run-dir "
         + directory_.path().string() + " --resume";
}

/// What the ledger and the random streams of the first part depend on must not change under it.
void training_run::check_resumable() const {
  if (resumed_->at.value >= options_.run.steps && earlier_summary_.value("ended", "") == "done")
    throw user_error("--resume: the run in " + directory_.path().string() + " has done all its "
                     + std::to_string(resumed_->at.value) + " steps; set run.steps higher to go on");
  if (!std::filesystem::exists(directory_.config_file()))
    return;
  auto was = read_json_file(directory_.config_file());
  auto now = nlohmann::json::parse(resolved_json(options_));
  for (const std::string path : {"seed", "deterministic", "data", "tokenizer", "model.architecture",
                                 "algorithm.critic.kind", "rollout.eta", "rollout.batch_size",
                                 "rollout.group_size"}) {
    auto pointer = "/" + path;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    const nlohmann::json::json_pointer at(pointer);
    if (was.contains(at) && was[at] != now[at])
      throw user_error("--resume: " + path + " was " + was[at].dump() + " and is now "
                       + now[at].dump() + "; a run goes on only with what it began with. Without a "
                       "configuration file it takes its own: " + resuming_command());
  }
}

void training_run::make_parts() {
  auto context = policy_->config().max_position_embeddings;
  auto room = context - options_.sampling.max_tokens;
  if (room < 1)
    throw user_error("sampling.max_tokens: found " + std::to_string(options_.sampling.max_tokens)
                     + ", but the model's context is " + std::to_string(context)
                     + " tokens, prompt included");
  auto& w = parts_.workers;
  w.options = options_;
  w.run_directory = directory_.path().string();
  w.model = policy_->config();
  w.tokens = tokens_;
  w.prompts = source_;
  w.judge = judge_;
  w.carrier = make_transport(options_);
  parts_.here = workers_here(options_);
  w.evaluator_device = evaluator_device(options_, parts_.here);
  if (cluster_)
    w.node = options_.cluster.head()->name;
  // Before minutes of warm-up: does any prompt fit?
  tokenized_feed(make_prompt_source(options_.data, options_.seed), tokens_, room).next();
  parts_.feed = std::make_shared<tokenized_feed>(source_, tokens_, room);
  auto views = policy_->views();
  weightsync::publisher_options o;
  o.lease_s = options_.weight_sync.lease_s;
  o.wire_type = wire_type(options_.generator.dtype);
  o.delta = options_.weight_sync.delta;
  parts_.publisher = std::make_shared<weightsync::publisher>(
    *w.carrier, weightsync::replicated(views), o);
  auto backend = std::make_shared<policy_backend>(policy_, parts_.publisher, checkpoints_,
                                                    stream_now);
  if (options_.cluster.old_logit_node() != nullptr) {
    o.wire_type = {};
    o.delta = false;
    parts_.exact_publisher = std::make_shared<weightsync::publisher>(
      *w.carrier, weightsync::replicated(views), o);
    backend->also_publish(parts_.exact_publisher, options_.algorithm.dedicated.wait_s);
  }
  backend->publish_from_device(receivers_on_gpus(options_));
  backend->observe(request_.observer);
  parts_.backend = std::move(backend);
  if (resumed_)
    parts_.saved_stream = resumed_->state.at("stream.json");
  auto own = options_;
  own.generator.device = w.evaluator_device;
  evaluation_ = std::make_unique<evaluation>(own, w.model, tokens_, *source_, judge_);
}

void training_run::warm_up() {
  const auto& w = options_.warmup;
  auto stops = tokens_->stop_tokens();
  const auto since = stream_now();
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
    const auto left = short_duration((stream_now() - since) / step * (w.steps - step));
    screen_.progress("warm-up", static_cast<double>(step) / w.steps,
                     printed("step %d/%d, loss %.3f, token accuracy %.3f, at most %s left", step,
                             w.steps, stats.loss, stats.token_accuracy, left.c_str()));
    if (step % 50 == 1)
      stage("warming up, step " + std::to_string(step) + " of at most " + std::to_string(w.steps));
    if (w.target_accuracy > 0 && step % 5 == 0 && step < w.steps
        && evaluation_->run({0}, policy_->views()).accuracy >= w.target_accuracy)
      break;
  }
  screen_.end_progress();
}

void training_run::evaluate(std::string_view when) {
  screen_.progress("evaluating", 0, std::string(when));
  stage("evaluating " + std::string(when));
  const auto report
    = evaluation_->run(policy_->current(), policy_->views(), [this] { return interrupted(); });
  if (evaluation_->progress() >= 1) // else it was interrupted: a program that judges may be slow
    record_.evaluated(report, when);
}

/// Waits for the stream's end, and fills in the ledger's sums at that moment.
run_outcome training_run::watch(stream& running, nlohmann::json& ledger) {
  auto outcome = run_outcome::done;
  for (;;) {
    if (auto end = running.wait(0.2)) {
      try {
        ledger = nlohmann::json::parse(running.ledger());
      } catch (const std::exception&) {
        if (end->empty()) // else what ended the stream counts: the controller's death, it may be
          throw;
      }
      if (!end->empty())
        throw std::runtime_error(*end);
      return outcome;
    }
    if (outcome == run_outcome::done && interrupted()) {
      outcome = run_outcome::interrupted;
      screen_.line("ending after this step, with a checkpoint (again to end at once)");
      running.drain();
    }
  }
}

run_outcome training_run::train() {
  stream_config config;
  std::optional<caf::actor_system> own;
  auto& system = cluster_ ? cluster_->system() : own.emplace(config);
  auto ledger = nlohmann::json::object();
  auto outcome = run_outcome::done;
  try {
    auto workers = parts_.workers;
    parts_.old_logits = policy_->old_logit_helper();
    stream running{system, std::move(parts_), record_};
    if (request_.started)
      request_.started(system, running.supervisor());
    if (cluster_)
      cluster_->open(workers, running.handles(), running.supervisor());
    stage("training");
    outcome = watch(running, ledger);
    if (cluster_)
      cluster_->close(outcome == run_outcome::done ? "all steps are done" : "it was interrupted");
  } catch (const std::exception& e) {
    screen_.end_progress();
    log::error("run", e.what());
    if (cluster_)
      cluster_->close(std::string("it failed: ") + e.what());
    try {
      finish("failed", ledger);
    } catch (const std::exception& second) { // the disk is full, say: the first reason counts
      log::error("run", second.what());
    }
    throw;
  }
  screen_.end_progress();
  if (outcome == run_outcome::done)
    evaluate("after training");
  finish(outcome == run_outcome::done ? "done" : "interrupted", ledger);
  return outcome;
}

/// The most memory of each node's process, this one's included: as the others told it last, each
/// second, to this process, and to those before it that left a summary.
std::map<std::string, std::int64_t> training_run::node_peaks(std::int64_t own) const {
  using by_node = std::map<std::string, std::int64_t>;
  auto out = monitor_.tree()->peak_memory();
  out[options_.cluster.head()->name] = own;
  for (const auto& [node, bytes] : earlier_summary_.value("node_peak_rss_bytes", by_node{}))
    out[node] = std::max(out[node], bytes);
  return out;
}

void training_run::finish(const std::string& how, const nlohmann::json& ledger) {
  auto summary = record_.summary(stream_now());
  nlohmann::ordered_json rollouts;
  for (const char* state : {"admitted", "trained", "dropped", "filtered", "failed", "in_flight"})
    rollouts[state] = ledger.value(state, std::int64_t{0});
  summary["rollouts"] = rollouts;
  summary["reasons"] = ledger.value("reasons", nlohmann::json::object());
  if (cluster_)
    summary["node_peak_rss_bytes"] = node_peaks(summary["peak_rss_bytes"]);
  auto here = options_; // of a cluster, what is in this process
  here.generator.count = workers_here(options_).generator;
  summary["predicted_peak_rss_bytes"] = trainer::total(trainer::run_memory(policy_->config(), here));
  summary["ended"] = how;
  directory_.write_summary(summary);
  write_report(directory_);
  auto folder = directory_.path().string();
  if (how != "done")
    screen_.line(how + "; go on with: " + resuming_command());
  screen_.line(printed("%d steps in %.0f s; the report: ", static_cast<int>(record_.steps()),
                       summary["wall_s"].get<double>())
               + directory_.report_file().string());
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
  // Before there is a folder of a run that can't be.
  const auto& s = request.options;
  auto find = [](compute_device device, const char* option) {
    static_cast<void>(model::torch_device(device, 0, option));
  };
  find(s.trainer.device, "trainer.device");
  if (workers_here(s).generator > 0)
    find(s.generator.device, "generator.device");
  if (s.algorithm.old_logits == old_logits_source::dedicated && s.cluster.old_logit_node() == nullptr)
    find(s.algorithm.dedicated.device, "algorithm.dedicated.device");
  return training_run(request).execute();
}

} // namespace millrace
