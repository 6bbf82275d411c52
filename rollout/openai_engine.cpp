#include "rollout/openai_engine.hpp"

#include "rollout/batching_engine.hpp"
#include "rollout/openai_request.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/model/checkpoint.hpp"

#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace millrace::generation {
namespace {

namespace fs = std::filesystem;

constexpr int most_failures = 3;
constexpr auto look_every = std::chrono::milliseconds(20);

std::string seconds_text(double s) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", s);
  return text;
}

/// A rollout that a server works on, with the thread that listens to it.
struct request {
  generation_task task;
  std::int32_t max_tokens = 0; ///< of the whole answer
  std::unique_ptr<model::answer_text> stops;
  std::atomic<bool> stopped{false};
  std::thread listener;
  bool listening = false; ///< what its thread found has not been looked at
  // Below: the engine's mutex.
  bool done = false;
  finish_reason end = finish_reason::none;
  std::string problem;
  bool lost = false; ///< the problem is that the server went away, or is another
  int failures = 0;  ///< in a row, since tokens came
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
  [[nodiscard]] std::string waits_for() const override {
    return lost_.is ? endpoint_.url : std::string();
  }
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
  void go_on();
  void lose(const std::string& why);
  void look_for_server();
  void settle(request& r, std::vector<rollout>& finished);
  rollout closed(request& r);
  [[nodiscard]] fs::path folder_of(version v) const {
    return endpoint_.folder / ("v" + std::to_string(v.value));
  }
  void hang_up(request& r) {
    r.stopped = true;
    const std::lock_guard lock(mutex_);
    if (r.hang_up)
      r.hang_up();
  }
  void stop(request& r);

  openai_endpoint endpoint_;
  engine_options options_;
  model::model_config config_;
  std::shared_ptr<const model::tokenizer> tokens_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<tensor_view> staging_;
  version current_ = no_version;
  /// What the server calls them. Listeners read it; none is there when it changes.
  std::string weights_;
  /// Whether the server is away, or has other weights: then no request runs.
  struct {
    bool is = false;
    double since = 0, next_look = 0;
    int looks = 0;
  } lost_;
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
  r.listening = true;
  r.listener = std::thread([this, &r] { listen(r); });
}

/// The thread of one request.
void openai_engine::listen(request& r) {
  std::string problem;
  bool lost = false;
  auto end = finish_reason::none;
  try {
    rollout so_far;
    {
      const std::lock_guard lock(mutex_);
      so_far = r.task.so_far;
    }
    const auto left = r.max_tokens - so_far.generated();
    end = left <= 0 ? finish_reason::length
                    : stream_completion(endpoint_, weights_, so_far, r.task.sampling, left,
                                        r.stopped,
                                        [&](std::function<void()> f) {
                                          const std::lock_guard lock(mutex_);
                                          r.hang_up = std::move(f);
                                        },
                                        [&](auto tokens) { append(r, tokens); });
  } catch (const server_lost& e) {
    problem = e.what();
    lost = true;
  } catch (const std::exception& e) {
    problem = e.what();
  }
  {
    const std::lock_guard lock(mutex_);
    if (r.end == finish_reason::none)
      r.end = end;
    r.problem = r.end == finish_reason::none ? problem : std::string();
    r.lost = lost;
    r.failures += problem.empty() ? 0 : 1;
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
    r.failures = 0;
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
  if (lost_.is)
    look_for_server();
  while (!lost_.is && !waiting_.empty()
         && static_cast<std::int32_t>(running_.size()) < options_.max_batch) {
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
        if (r->listening && r->done)
          ready.push_back(r.get());
      return !ready.empty();
    };
    const bool busy = lost_.is || !running_.empty();
    news_.wait_for(lock, busy ? look_every : std::chrono::milliseconds(1), look);
  }
  std::vector<rollout> finished;
  for (auto* r : ready)
    settle(*r, finished);
  return finished;
}

/// A request whose listener is done: its answer is finished, or it is to be tried again.
void openai_engine::settle(request& r, std::vector<rollout>& finished) {
  if (r.listener.joinable())
    r.listener.join();
  r.stopped = false;
  r.listening = false;
  if (r.end != finish_reason::none) {
    const auto id = r.task.so_far.id;
    finished.push_back(closed(r));
    running_.erase(id);
    return;
  }
  if (r.failures >= most_failures)
    throw std::runtime_error(r.problem);
  if (r.lost)
    lose(r.problem);
  if (lost_.is)
    return;
  std::this_thread::sleep_for(std::chrono::milliseconds(50 * r.failures));
  start(r);
}

/// What comes of a server that isn't up yet, went away, or is another now. It must have the current
/// weights before it samples a token again: no version would be true otherwise. What it sends to
/// others of our requests meanwhile is not waited for.
void openai_engine::lose(const std::string& why) {
  if (lost_.is)
    return;
  lost_ = {true, options_.clock(), 0, 0};
  interrupt();
  log::warning("generator", why + "; "
                              + (running_.empty()
                                   ? std::string("it is waited for, ")
                                   : std::to_string(running_.size()) + " answers wait for it, ")
                              + seconds_text(endpoint_.timeout_s)
                              + " at most (generator.backend.params.timeout_s)");
}

/// Gives the server the current weights, as soon as it takes them.
void openai_engine::look_for_server() {
  const auto now = options_.clock();
  if (now < lost_.next_look)
    return;
  try {
    weights_ = request_reload(endpoint_, folder_of(current_));
  } catch (const std::exception& e) {
    const auto waited = options_.clock() - lost_.since; // a server that hangs takes long to look at
    if (waited >= endpoint_.timeout_s)
      throw std::runtime_error(std::string(e.what()) + "; so it has been for "
                               + seconds_text(waited)
                               + " (generator.backend.params.timeout_s)");
    lost_.next_look = now + std::min(1.0, 0.05 * static_cast<double>(1 << lost_.looks));
    lost_.looks = std::min(lost_.looks + 1, 5);
    return;
  }
  go_on();
}

/// The server has the current weights.
void openai_engine::go_on() {
  if (std::exchange(lost_.is, false))
    log::warning("generator", "generator at " + endpoint_.url + ": it is there now, after "
                                + seconds_text(options_.clock() - lost_.since) + "; it was given "
                                + to_string(current_) + ", and "
                                + std::to_string(running_.size()) + " answers go on");
  for (const auto& [id, r] : running_)
    if (r->end == finish_reason::none)
      start(*r);
}

/// Ends a request. A connection that is only being made doesn't hear the first time.
void openai_engine::stop(request& r) {
  for (bool done = !r.listener.joinable(); !done;) {
    hang_up(r);
    std::unique_lock lock(mutex_);
    done = news_.wait_for(lock, look_every, [&] { return r.done; });
  }
  if (r.listener.joinable())
    r.listener.join();
  r.stopped = false;
  r.listening = r.end != finish_reason::none;
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
  model::save_checkpoint(folder_of(v), config_, staging_, tokens_.get());
  const auto former = std::exchange(current_, v);
  try {
    weights_ = request_reload(endpoint_, folder_of(v));
    go_on();
  } catch (const server_lost& e) { // or isn't up yet
    lose(e.what()); // no token is sampled before it has them
  }
  std::error_code ignored; // what is left over does no harm
  if (former != no_version)
    fs::remove_all(folder_of(former), ignored);
  for (const auto& m : memory_)
    report.bytes += static_cast<std::int64_t>(m.size());
  report.running = static_cast<std::int64_t>(running_.size());
  report.pause_s = options_.clock() - begin;
  return report;
}

} // namespace

std::unique_ptr<engine> make_openai_engine(const openai_endpoint& endpoint,
                                           const engine_options& options,
                                           const model::model_config& config,
                                           std::shared_ptr<const model::tokenizer> tokens) {
  return std::make_unique<openai_engine>(endpoint, options, config, std::move(tokens));
}

} // namespace millrace::generation
