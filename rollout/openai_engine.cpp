#include "rollout/openai_engine.hpp"

#include "rollout/batching_engine.hpp"
#include "rollout/openai_request.hpp"
#include "runtime/error.hpp"
#include "runtime/model/checkpoint.hpp"

#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace millrace::generation {
namespace {

constexpr int most_failures = 3;

/// A rollout that a server works on, with the thread that listens to it.
struct request {
  generation_task task;
  std::int32_t max_tokens = 0; ///< of the whole answer
  std::unique_ptr<model::answer_text> stops;
  std::atomic<bool> stopped{false};
  std::thread listener;
  // Below: the engine's mutex.
  bool done = false;
  finish_reason end = finish_reason::none;
  std::string problem;
  int failures = 0;
  std::function<void()> hang_up;
};

class openai_engine final : public engine {
public:
  openai_engine(openai_endpoint endpoint, const engine_options& options,
                const model::model_config& config, std::shared_ptr<const model::tokenizer> tokens)
    : endpoint_(std::move(endpoint)), options_(resolved(options, config, tokens.get())),
      config_(config), tokens_(std::move(tokens)) {
    for (const auto& p : model::parameter_shapes(config_)) {
      tensor_view v;
      v.name = p.name;
      v.shape = p.shape;
      v.type = dtype::f32;
      memory_.emplace_back(static_cast<std::size_t>(v.elements()) * sizeof(float));
      v.data = memory_.back().data();
      staging_.push_back(std::move(v));
    }
  }
  ~openai_engine() override { interrupt(); }

  void submit(generation_task task) override;
  bool cancel(rollout_id id) override;
  std::vector<rollout> step() override;
  std::vector<rollout> drain() override;
  [[nodiscard]] std::vector<rollout> partials() const override;
  [[nodiscard]] std::size_t running() const override { return running_.size(); }
  [[nodiscard]] std::size_t waiting() const override { return waiting_.size(); }
  [[nodiscard]] std::int64_t outstanding_tokens() const override;
  [[nodiscard]] std::vector<tensor_view> staging() override { return staging_; }
  void prepare() override {}
  swap_report install(version v) override;
  [[nodiscard]] version current() const override { return current_; }
  [[nodiscard]] engine_statistics statistics() const override {
    const std::lock_guard lock(mutex_);
    return count_;
  }

private:
  using held = std::unique_ptr<request>;
  void start(request& r);
  void listen(request& r);
  void append(request& r, std::span<const served_token> tokens);
  void interrupt();
  rollout closed(request& r);
  void hang_up(request& r) {
    r.stopped = true;
    const std::lock_guard lock(mutex_);
    if (r.hang_up)
      r.hang_up();
  }
  void stop(request& r) {
    hang_up(r);
    if (r.listener.joinable())
      r.listener.join();
    r.stopped = false;
  }

  openai_endpoint endpoint_;
  engine_options options_;
  model::model_config config_;
  std::shared_ptr<const model::tokenizer> tokens_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<tensor_view> staging_;
  version current_ = no_version;
  std::deque<held> waiting_;
  std::map<rollout_id, held> running_;
  mutable std::mutex mutex_;
  std::condition_variable news_;
  engine_statistics count_;
};

void openai_engine::submit(generation_task task) {
  const auto& a = task.so_far;
  const auto n = static_cast<std::int32_t>(a.tokens.size());
  if (a.prompt_length < 1 || a.prompt_length > n || a.prompt_length >= options_.max_context
      || a.versions.size() != a.tokens.size() || a.behaviour_logp.size() != a.tokens.size())
    throw user_error("rollout " + to_string(a.id) + ": a prompt of "
                     + std::to_string(a.prompt_length) + " tokens can't be answered in a context "
                     "of " + std::to_string(options_.max_context));
  auto r = std::make_unique<request>();
  const auto room = options_.max_context - a.prompt_length;
  r->max_tokens = task.sampling.max_tokens > 0 ? std::min(room, task.sampling.max_tokens) : room;
  if (!task.sampling.stop.empty() && tokens_)
    r->stops = std::make_unique<model::answer_text>(*tokens_, task.sampling.stop);
  r->task = std::move(task);
  waiting_.push_back(std::move(r));
}

bool openai_engine::cancel(rollout_id id) {
  if (std::erase_if(waiting_, [&](const held& r) { return r->task.so_far.id == id; }) > 0)
    return true;
  const auto found = running_.find(id);
  if (found == running_.end())
    return false;
  stop(*found->second);
  running_.erase(found);
  return true;
}

void openai_engine::start(request& r) {
  r.done = false;
  r.listener = std::thread([this, &r] { listen(r); });
}

/// The thread of one request.
void openai_engine::listen(request& r) {
  std::string problem;
  auto end = finish_reason::none;
  try {
    rollout so_far;
    {
      const std::lock_guard lock(mutex_);
      so_far = r.task.so_far;
    }
    const auto left = r.max_tokens - so_far.generated();
    end = left <= 0 ? finish_reason::length
                    : stream_completion(endpoint_, so_far, r.task.sampling, left, r.stopped,
                                        [&](std::function<void()> f) {
                                          const std::lock_guard lock(mutex_);
                                          r.hang_up = std::move(f);
                                        },
                                        [&](auto tokens) { append(r, tokens); });
  } catch (const std::exception& e) {
    problem = e.what();
  }
  {
    const std::lock_guard lock(mutex_);
    if (r.end == finish_reason::none)
      r.end = end;
    r.problem = r.end == finish_reason::none ? problem : std::string();
    r.failures = problem.empty() ? 0 : r.failures + 1;
    r.done = true;
  }
  news_.notify_all();
}

void openai_engine::append(request& r, std::span<const served_token> tokens) {
  const std::lock_guard lock(mutex_);
  auto& a = r.task.so_far;
  for (const auto& t : tokens) {
    if (r.stopped)
      return;
    if (t.token < 0 || t.token >= config_.vocab_size)
      throw std::runtime_error("generator at " + endpoint_.url + ": it sampled token "
                               + std::to_string(t.token) + " of a vocabulary of "
                               + std::to_string(config_.vocab_size)
                               + "; does it have the same model?");
    a.tokens.push_back(t.token);
    a.behaviour_logp.push_back(t.logp);
    a.versions.push_back(current_.value);
    ++count_.sampled_tokens;
    if (r.stops) {
      r.stops->add(t.token, a.generated() >= r.task.sampling.min_tokens);
      if (r.stops->stopped()) { // the server is told by hanging up
        r.end = finish_reason::stop;
        r.stopped = true;
      }
    }
  }
}

rollout openai_engine::closed(request& r) {
  auto a = std::move(r.task.so_far);
  a.finish = r.end;
  a.finished_at = options_.clock();
  if (r.stops && r.stops->stopped())
    a.text = r.stops->text();
  else if (tokens_)
    a.text = tokens_->decode(
      std::span(a.tokens).subspan(static_cast<std::size_t>(a.prompt_length)));
  return a;
}

std::vector<rollout> openai_engine::step() {
  ensure(current_ != no_version, "an engine steps before its first weights were installed");
  while (!waiting_.empty() && static_cast<std::int32_t>(running_.size()) < options_.max_batch) {
    auto r = std::move(waiting_.front());
    waiting_.pop_front();
    auto& a = r->task.so_far;
    if (a.started_at == 0)
      a.started_at = options_.clock();
    start(*running_.emplace(a.id, std::move(r)).first->second);
  }
  std::vector<request*> ready;
  {
    std::unique_lock lock(mutex_);
    ++count_.steps;
    const auto look = [&] {
      ready.clear();
      for (const auto& [id, r] : running_)
        if (r->done)
          ready.push_back(r.get());
      return !ready.empty();
    };
    news_.wait_for(lock, std::chrono::milliseconds(running_.empty() ? 1 : 20), look);
  }
  std::vector<rollout> finished;
  for (auto* r : ready) {
    if (r->listener.joinable())
      r->listener.join();
    r->stopped = false;
    if (!r->problem.empty() && r->failures >= most_failures)
      throw std::runtime_error(r->problem);
    if (!r->problem.empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50 * r->failures));
      start(*r);
      continue;
    }
    const auto id = r->task.so_far.id;
    finished.push_back(closed(*r));
    running_.erase(id);
  }
  return finished;
}

/// Ends every request; the tokens that came are kept.
void openai_engine::interrupt() {
  for (const auto& [id, r] : running_)
    hang_up(*r);
  for (const auto& [id, r] : running_)
    stop(*r);
}

std::vector<rollout> openai_engine::drain() {
  interrupt();
  std::vector<rollout> all;
  for (auto& [id, r] : running_)
    all.push_back(std::move(r->task.so_far));
  for (auto& r : waiting_)
    all.push_back(std::move(r->task.so_far));
  running_.clear();
  waiting_.clear();
  return all;
}

std::vector<rollout> openai_engine::partials() const {
  const std::lock_guard lock(mutex_);
  std::vector<rollout> all;
  for (const auto& [id, r] : running_)
    all.push_back(r->task.so_far);
  for (const auto& r : waiting_)
    all.push_back(r->task.so_far);
  return all;
}

std::int64_t openai_engine::outstanding_tokens() const {
  const std::lock_guard lock(mutex_);
  std::int64_t total = 0;
  for (const auto& [id, r] : running_)
    total += r->max_tokens - r->task.so_far.generated();
  for (const auto& r : waiting_)
    total += r->max_tokens - r->task.so_far.generated();
  return total;
}

swap_report openai_engine::install(version v) {
  ensure(v > current_, [&] { return "install " + to_string(v) + " over " + to_string(current_); });
  swap_report report{.from = current_, .to = v};
  const auto begin = options_.clock();
  interrupt();
  const auto folder = endpoint_.folder / ("v" + std::to_string(v.value));
  model::save_checkpoint(folder, config_, staging_, tokens_.get());
  request_reload(endpoint_, folder);
  std::error_code ignored; // what is left over does no harm
  if (current_ != no_version)
    std::filesystem::remove_all(endpoint_.folder / ("v" + std::to_string(current_.value)), ignored);
  current_ = v;
  for (const auto& [id, r] : running_)
    if (r->end == finish_reason::none)
      start(*r);
  for (const auto& m : memory_)
    report.bytes += static_cast<std::int64_t>(m.size());
  report.running = static_cast<std::int64_t>(running_.size());
  report.pause_s = options_.clock() - begin;
  return report;
}

} // namespace

openai_endpoint openai_endpoint::from(const nlohmann::json& params) {
  const std::string where = "generator.backend.params";
  openai_endpoint e;
  if (!params.is_object())
    throw user_error(where + ": found " + params.dump() + ", expected an object");
  for (const auto& [name, v] : params.items()) {
    auto* text = name == "endpoint" ? &e.url : name == "token" ? &e.token
                 : name == "model" ? &e.model : name == "reload" ? &e.reload
                 : name == "reload_field" ? &e.reload_field : nullptr;
    if (name == "timeout_s" && v.is_number() && v.get<double>() >= 1)
      e.timeout_s = v.get<double>();
    else if (name == "folder" && v.is_string())
      e.folder = v.get<std::string>();
    else if (text && v.is_string())
      *text = v.get<std::string>();
    else
      throw user_error(where + "." + name + ": found " + v.dump() + "; expected endpoint, folder, "
                       "token, model, reload and reload_field as strings, and timeout_s as a number "
                       "from 1");
  }
  if (!e.url.starts_with("http://") && !e.url.starts_with("https://"))
    throw user_error(where + ".endpoint: found \"" + e.url + "\", expected http://HOST:PORT");
  if (e.folder.empty())
    throw user_error(where + ".folder: expected a folder that the server too can read, for weights");
  return e;
}

std::unique_ptr<engine> make_openai_engine(const openai_endpoint& endpoint,
                                           const engine_options& options,
                                           const model::model_config& config,
                                           std::shared_ptr<const model::tokenizer> tokens) {
  return std::make_unique<openai_engine>(endpoint, options, config, std::move(tokens));
}

} // namespace millrace::generation
