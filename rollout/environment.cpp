#include "rollout/environment.hpp"

#include "runtime/error.hpp"
#include "runtime/plugins/json_parameters.hpp"

#include <cmath>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

namespace millrace {

namespace {

/// The verdict is in the text already; a reward worker only reads it.
class environment_reward final : public reward {
public:
  [[nodiscard]] verdict judge(const prompt&, std::string_view answer,
                              finish_reason) const override {
    return verdict_of(std::string(answer));
  }
};

} // namespace

registry<environment_entry>& environments() {
  static registry<environment_entry> all("conversational environment");
  return all;
}

void add_plugin_environments(const plugins::loaded_plugin& from) {
  for (const auto& [name, r] : from.environments)
    environments().add(name, r.help, r);
  if (!from.environments.empty() && !rewards().contains("environment"))
    rewards().add("environment", "What rollout.environment said at the end of the conversation",
                  [](const nlohmann::json&, const std::string&) -> std::unique_ptr<reward> {
                    return std::make_unique<environment_reward>();
                  });
}

verdict verdict_of(const std::string& conversation) {
  verdict v;
  const auto j = nlohmann::json::parse(conversation, nullptr, false);
  if (!j.is_object() || !j.contains("turns")) {
    v.failure = "the answer is no conversation: set rollout.environment";
  } else if (j.contains("failure")) {
    v.failure = j["failure"].get<std::string>();
  } else {
    v.reward = j.at("reward").get<float>();
    v.correct = j.at("correct").get<bool>();
    v.detail = j.at("detail").get<std::string>();
  }
  v.judged = v.failure.empty();
  return v;
}

namespace generation {

namespace {

constexpr std::size_t environment_threads = 4;

/// The conversation so far, out of the tokens: what was sampled is the model's.
std::vector<plugin::turn> turns_of(const rollout& r, const model::tokenizer& tokens) {
  std::vector<plugin::turn> turns;
  const auto n = r.tokens.size();
  for (auto begin = static_cast<std::size_t>(r.prompt_length); begin < n;) {
    auto end = begin;
    const bool sampled = r.versions[begin] >= 0;
    while (end < n && (r.versions[end] >= 0) == sampled)
      ++end;
    turns.push_back({sampled, tokens.decode(std::span(r.tokens).subspan(begin, end - begin))});
    begin = end;
  }
  return turns;
}

/// What a thread makes of a finished turn.
struct outcome {
  rollout so_far;
  sampling_params sampling;
  std::uint64_t ticket = 0;
  bool over = false;
};

class environment_engine final : public engine {
public:
  environment_engine(std::unique_ptr<engine> inner, plugins::origin from,
                     std::unique_ptr<const plugin::environment> world,
                     std::shared_ptr<const model::tokenizer> tokens,
                     std::shared_ptr<const prompt_source> prompts, std::int32_t max_context)
    : inner_(std::move(inner)), from_(std::move(from)), world_(std::move(world)),
      tokens_(std::move(tokens)), prompts_(std::move(prompts)), max_context_(max_context) {
    for (std::size_t i = 0; i < environment_threads; ++i)
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
  ~environment_engine() override {
    for (auto& t : threads_)
      t.request_stop();
    threads_.clear();
  }

  void submit(generation_task task) override {
    auto id = task.so_far.id;
    auto sampling = task.sampling;
    inner_->submit(std::move(task));
    sampling_[id] = sampling;
  }

  bool cancel(rollout_id id) override {
    sampling_.erase(id);
    return asked_.erase(id) > 0 || inner_->cancel(id);
  }

  std::vector<rollout> step() override {
    std::vector<rollout> out;
    take_outcomes(out);
    if (inner_->running() + inner_->waiting() > 0)
      for (auto& r : inner_->step())
        ended(std::move(r), out);
    return out;
  }

  std::vector<rollout> drain() override {
    auto out = inner_->drain();
    for (auto& [id, a] : asked_)
      out.push_back(std::move(a.so_far));
    asked_.clear();
    sampling_.clear();
    return out;
  }
  [[nodiscard]] std::vector<rollout> partials() const override {
    auto out = inner_->partials();
    for (const auto& [id, a] : asked_)
      out.push_back(a.so_far);
    return out;
  }
  [[nodiscard]] std::size_t running() const override { return inner_->running() + asked_.size(); }
  [[nodiscard]] std::size_t waiting() const override { return inner_->waiting(); }
  [[nodiscard]] std::int64_t outstanding_tokens() const override {
    return inner_->outstanding_tokens();
  }
  [[nodiscard]] std::vector<tensor_view> staging() override { return inner_->staging(); }
  void prepare() override { inner_->prepare(); }
  swap_report install(version v) override { return inner_->install(v); }
  [[nodiscard]] version current() const override { return inner_->current(); }
  [[nodiscard]] engine_statistics statistics() const override { return inner_->statistics(); }

private:
  struct question_out {
    rollout so_far;
    std::uint64_t ticket = 0;
  };

  void ended(rollout r, std::vector<rollout>& out) {
    if (r.finish == finish_reason::cancelled) {
      out.push_back(std::move(r));
      return;
    }
    const auto ticket = ++tickets_;
    asked_[r.id] = {r, ticket};
    auto sampling = sampling_[r.id];
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back({std::move(r), sampling, ticket, false});
    }
    wake_.notify_one();
  }

  void take_outcomes(std::vector<rollout>& out) {
    std::vector<outcome> done;
    {
      std::unique_lock lock(mutex_);
      // Nothing to decode: rather wait here than spin.
      if (done_.empty() && !asked_.empty() && inner_->running() + inner_->waiting() == 0)
        arrived_.wait_for(lock, std::chrono::milliseconds(2), [&] { return !done_.empty(); });
      done = std::exchange(done_, {});
    }
    for (auto& o : done) {
      const auto at = asked_.find(o.so_far.id);
      if (at == asked_.end() || at->second.ticket != o.ticket)
        continue; // cancelled, or taken elsewhere, meanwhile
      asked_.erase(at);
      if (o.over) {
        sampling_.erase(o.so_far.id);
        out.push_back(std::move(o.so_far));
      } else {
        inner_->submit({std::move(o.so_far), o.sampling});
      }
    }
  }

  void work(const std::stop_token& stop) {
    for (;;) {
      outcome job;
      {
        std::unique_lock lock(mutex_);
        if (!wake_.wait(lock, stop, [&] { return !jobs_.empty(); }))
          return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      react(job);
      std::lock_guard lock(mutex_);
      done_.push_back(std::move(job));
      arrived_.notify_one();
    }
  }

  /// Continues the rollout, or ends it with the conversation as its text.
  void react(outcome& job) const {
    auto& r = job.so_far;
    nlohmann::json text;
    try {
      const auto p = r.prompt_id >= prompt_source::held_out_ids
                       ? prompts_->held_out(r.prompt_id - prompt_source::held_out_ids)
                       : prompts_->at(r.prompt_id);
      const auto turns = turns_of(r, *tokens_);
      auto& shown = text["turns"] = nlohmann::json::array();
      for (const auto& t : turns)
        shown.push_back({{"role", t.model ? "model" : "environment"}, {"text", t.text}});
      auto said = ask(p, turns, r.finish);
      if (!said.done && r.finish == finish_reason::stop) {
        if (go_on(job, said.text))
          return;
        r.finish = finish_reason::length;
        said = ask(p, turns, r.finish);
      }
      if (!std::isfinite(said.reward))
        plugins::blame(from_, "react()", "gave a reward that is not finite");
      text["reward"] = said.reward;
      text["correct"] = said.correct;
      text["detail"] = said.detail;
    } catch (const std::exception& e) {
      text["failure"] = e.what();
      if (!text.contains("turns"))
        text["turns"] = nlohmann::json::array();
    }
    r.text = text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    job.over = true;
  }

  [[nodiscard]] plugin::reaction ask(const prompt& p, const std::vector<plugin::turn>& turns,
                                     finish_reason how) const {
    return plugins::guarded(from_, "react() threw", [&] {
      return world_->react({p.id, p.text, p.answer}, turns,
                           how == finish_reason::stop ? plugin::finish::stop
                                                      : plugin::finish::length);
    });
  }

  /// False when there is no room for the environment's words and one of the model's.
  bool go_on(outcome& job, const std::string& words) const {
    auto& r = job.so_far;
    const auto ids = tokens_->encode_markup(words);
    if (ids.empty())
      plugins::blame(from_, "react()", "is not done, but says nothing that the model could read");
    const auto after = static_cast<std::int64_t>(r.tokens.size() + ids.size());
    if (after >= max_context_ || after - r.prompt_length >= job.sampling.max_tokens)
      return false;
    r.tokens.insert(r.tokens.end(), ids.begin(), ids.end());
    r.behaviour_logp.resize(r.tokens.size(), 0.0F);
    r.versions.resize(r.tokens.size(), no_version.value);
    r.finish = finish_reason::none;
    r.text.clear();
    return true;
  }

  std::unique_ptr<engine> inner_;
  plugins::origin from_;
  std::unique_ptr<const plugin::environment> world_;
  std::shared_ptr<const model::tokenizer> tokens_;
  std::shared_ptr<const prompt_source> prompts_;
  std::int32_t max_context_;
  std::map<rollout_id, sampling_params> sampling_;
  std::map<rollout_id, question_out> asked_; ///< that a thread has, by the engine's thread
  std::uint64_t tickets_ = 0;
  std::mutex mutex_; ///< guards the two queues
  std::condition_variable_any wake_, arrived_;
  std::deque<outcome> jobs_;
  std::vector<outcome> done_;
  std::vector<std::jthread> threads_; ///< last: they end first
};

} // namespace

std::unique_ptr<engine> with_environment(std::unique_ptr<engine> inner,
                                         const environment_entry& made_by,
                                         const nlohmann::json& params,
                                         std::shared_ptr<const model::tokenizer> tokens,
                                         std::shared_ptr<const prompt_source> prompts,
                                         std::int32_t max_context) {
  ensure(tokens && prompts, "an environment needs a tokenizer and the prompts");
  auto world = plugins::make(made_by, params, "rollout.environment.params");
  return std::make_unique<environment_engine>(std::move(inner), made_by.from, std::move(world),
                                              std::move(tokens), std::move(prompts), max_context);
}

} // namespace generation

} // namespace millrace
