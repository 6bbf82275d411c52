#include "rollout/generation_service.hpp"

#include "runtime/error.hpp"

#include <chrono>
#include <future>
#include <utility>

namespace millrace::generation {

struct generation_service::call {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<answer_update> updates;
  std::int64_t group = 0;
  std::int32_t open = 0;             ///< answers that are not finished; the service's mutex
  std::vector<std::int32_t> told;    ///< by answer: tokens that were delivered; the thread's
  std::vector<std::shared_ptr<likely_tokens>> watched; ///< by answer, where asked for; the thread's
  bool stream = false;

  void push(answer_update u) {
    {
      const std::lock_guard lock(mutex);
      updates.push_back(std::move(u));
    }
    arrived.notify_one();
  }
};

std::optional<answer_update> generation_service::ticket::next(double seconds) {
  std::unique_lock lock(call_->mutex);
  if (!call_->arrived.wait_for(lock, std::chrono::duration<double>(seconds),
                               [&] { return !call_->updates.empty(); }))
    return std::nullopt;
  auto u = std::move(call_->updates.front());
  call_->updates.pop_front();
  return u;
}

generation_service::ticket::~ticket() {
  if (call_)
    service_->withdraw(call_);
}

generation_service::generation_service(std::unique_ptr<engine> e, limits l)
  : engine_(std::move(e)), limits_(l), thread_([this] { run(); }) {}

generation_service::~generation_service() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::optional<generation_service::ticket> generation_service::start(
  std::vector<std::int32_t> prompt, const sampling_params& sampling, std::int32_t n, bool stream,
  std::size_t likeliest) {
  auto c = std::make_shared<call>();
  c->stream = stream;
  c->open = n;
  c->told.assign(static_cast<std::size_t>(n), 0);
  for (std::int32_t i = 0; i < n && likeliest > 0; ++i)
    c->watched.push_back(std::make_shared<likely_tokens>(likely_tokens{likeliest, {}}));
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || outstanding_ + static_cast<std::size_t>(n) > limits_.max_waiting)
      return std::nullopt;
    outstanding_ += static_cast<std::size_t>(n);
    c->group = next_group_++;
    calls_[c->group] = c;
    for (std::int32_t i = 0; i < n; ++i) {
      pending p{{}, c};
      auto& r = p.task.so_far;
      r.id = {c->group, i};
      r.prompt_length = static_cast<std::int32_t>(prompt.size());
      r.tokens = prompt;
      r.behaviour_logp.assign(prompt.size(), 0.0F);
      r.versions.assign(prompt.size(), -1);
      p.task.sampling = sampling;
      incoming_.push_back(std::move(p));
    }
  }
  wake_.notify_one();
  return ticket(*this, std::move(c));
}

void generation_service::withdraw(const std::shared_ptr<call>& c) {
  {
    const std::lock_guard lock(mutex_);
    if (c->open > 0)
      cancelled_.push_back(c);
  }
  wake_.notify_one();
}

version generation_service::reload(const weight_loader& load) {
  const std::lock_guard one_at_a_time(reload_);
  // The staging buffers and prepare() may be used beside step().
  load(engine_->staging());
  engine_->prepare();
  std::promise<version> installed;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_)
      throw user_error("the server is stopping");
    between_steps_ = [&] {
      try {
        const auto v = engine_->current().next();
        engine_->install(v);
        installed.set_value(v);
      } catch (...) {
        installed.set_exception(std::current_exception());
      }
    };
  }
  wake_.notify_one();
  return installed.get_future().get();
}

engine_statistics generation_service::statistics() {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

std::size_t generation_service::outstanding() {
  const std::lock_guard lock(mutex_);
  return outstanding_;
}

/// Takes in and takes back what was asked for since the last step. The mutex is held.
void generation_service::admit() {
  for (const auto& c : cancelled_) {
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(c->told.size()); ++i)
      engine_->cancel({c->group, i});
    std::erase_if(incoming_, [&](const pending& p) { return p.owner == c; });
    outstanding_ -= static_cast<std::size_t>(c->open);
    c->open = 0;
    calls_.erase(c->group);
  }
  cancelled_.clear();
  for (auto& p : incoming_) {
    const auto id = p.task.so_far.id;
    const auto index = id.sample;
    try {
      engine_->submit(std::move(p.task));
      if (!p.owner->watched.empty())
        engine_->watch(id, p.owner->watched[static_cast<std::size_t>(index)]);
    } catch (const std::exception& e) {
      engine_->cancel(id);
      --outstanding_;
      if (--p.owner->open == 0)
        calls_.erase(p.owner->group);
      p.owner->push({.index = index, .finish = finish_reason::cancelled, .error = e.what()});
    }
  }
  incoming_.clear();
}

void generation_service::deliver(const rollout& r, bool finished) {
  std::shared_ptr<call> c;
  {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(r.id.group);
    if (found == calls_.end())
      return;
    c = found->second;
    if (finished) {
      --outstanding_;
      if (--c->open == 0)
        calls_.erase(found);
    }
  }
  auto& told = c->told[static_cast<std::size_t>(r.id.sample)];
  if (!finished && (!c->stream || told == r.generated()))
    return;
  answer_update u{.index = r.id.sample, .finish = r.finish, .text = r.text};
  const auto from = r.prompt_length + told;
  u.tokens.assign(r.tokens.begin() + from, r.tokens.end());
  u.logp.assign(r.behaviour_logp.begin() + from, r.behaviour_logp.end());
  u.youngest = {r.versions.back()};
  if (!c->watched.empty()) {
    const auto& all = c->watched[static_cast<std::size_t>(r.id.sample)]->positions;
    u.likeliest.assign(all.begin() + told, all.begin() + r.generated());
  }
  told = r.generated();
  c->push(std::move(u));
}

void generation_service::report_progress() {
  bool any = false;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [group, c] : calls_)
      any = any || c->stream;
  }
  if (any)
    for (const auto& r : engine_->partials())
      deliver(r, false);
}

void generation_service::run() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] {
        return stopping_ || between_steps_ || !incoming_.empty() || !cancelled_.empty()
               || engine_->running() + engine_->waiting() > 0;
      });
      if (stopping_)
        break;
      admit();
      task = std::exchange(between_steps_, {});
    }
    if (task)
      task();
    try {
      for (const auto& r : engine_->step())
        deliver(r, true);
      report_progress();
    } catch (const std::exception& e) { // weights that give no finite logits, say
      for (auto& r : engine_->drain()) {
        r.finish = finish_reason::cancelled;
        r.text.clear();
        std::shared_ptr<call> c;
        {
          const std::lock_guard lock(mutex_);
          if (const auto found = calls_.find(r.id.group); found != calls_.end())
            c = found->second;
        }
        if (c)
          c->push({.index = r.id.sample, .finish = r.finish, .error = e.what()});
        deliver(r, true);
      }
    }
    const std::lock_guard lock(mutex_);
    statistics_ = engine_->statistics();
  }
  const std::lock_guard lock(mutex_);
  if (between_steps_)
    std::exchange(between_steps_, {})();
  for (const auto& [group, c] : calls_)
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(c->told.size()); ++i)
      c->push({.index = i, .finish = finish_reason::cancelled, .error = "the server is stopping"});
}

} // namespace millrace::generation
