#include "rollout/engine.hpp"

#include "rollout/engine_cache.hpp"
#include "rollout/sampler.hpp"
#include "runtime/error.hpp"
#include "runtime/random.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <unordered_set>
#include <utility>

namespace millrace::generation {
namespace {

double steady_seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

engine_options resolved(engine_options o, const model::model_config& config,
                        const model::tokenizer* tokens) {
  const auto need = [](bool ok, const std::string& what) {
    if (!ok)
      throw user_error("generator: " + what);
  };
  config.validate("model");
  need(o.max_batch >= 1, "max_batch is " + std::to_string(o.max_batch) + ", expected at least 1");
  need(o.threads >= 1 && o.threads <= 1024,
       "threads is " + std::to_string(o.threads) + ", expected 1 … 1024");
  need(o.prefill_tokens >= 1, "prefill_tokens is " + std::to_string(o.prefill_tokens)
                                + ", expected at least 1");
  const auto limit = static_cast<std::int32_t>(
    std::min<std::int64_t>(config.max_position_embeddings, 1 << 24));
  need(o.max_context >= 0 && o.max_context <= limit,
       "max_context is " + std::to_string(o.max_context) + ", but the model has "
         + std::to_string(limit) + " positions");
  if (o.max_context == 0)
    o.max_context = limit;
  const auto one = std::int64_t{model::blocks_for(o.max_context)} * model::block_tokens;
  if (o.kv_cache_tokens == 0)
    o.kv_cache_tokens = one * o.max_batch;
  need(o.kv_cache_tokens >= one,
       "kv_cache_tokens is " + std::to_string(o.kv_cache_tokens)
         + ", but one sequence of max_context needs " + std::to_string(one));
  need(!tokens || tokens->vocabulary_size() <= config.vocab_size,
       "the tokenizer has " + std::to_string(tokens ? tokens->vocabulary_size() : 0)
         + " tokens, the model only " + std::to_string(config.vocab_size));
  if (o.stop_tokens.empty())
    o.stop_tokens = tokens ? tokens->stop_tokens() : config.eos_token_ids;
  if (!o.clock)
    o.clock = steady_seconds;
  return o;
}

class cpu_engine final : public engine {
public:
  cpu_engine(const engine_options& options, const model::model_config& config,
             std::shared_ptr<const model::tokenizer> tokens)
      : options_(resolved(options, config, tokens.get())), tokens_(std::move(tokens)),
        decoder_(config, cache_blocks(), options_.max_context, options_.threads),
        cache_(decoder_, cache_blocks(), options_.share_prefixes) {
    count_.kv_blocks = cache_.capacity();
  }

  void submit(generation_task task) override;
  bool cancel(rollout_id id) override;
  std::vector<rollout> step() override;
  std::vector<rollout> drain() override;
  [[nodiscard]] std::vector<rollout> partials() const override;
  [[nodiscard]] std::size_t running() const override { return running_.size(); }
  [[nodiscard]] std::size_t waiting() const override { return waiting_.size(); }
  [[nodiscard]] std::int64_t outstanding_tokens() const override;
  [[nodiscard]] std::vector<tensor_view> staging() override { return decoder_.staging(); }
  void prepare() override { decoder_.prepare(); }
  swap_report install(version v) override;
  [[nodiscard]] version current() const override { return current_; }
  [[nodiscard]] engine_statistics statistics() const override {
    auto s = count_;
    s.kv_blocks_free = cache_.available();
    return s;
  }

private:
  using held = std::unique_ptr<sequence>;

  [[nodiscard]] std::int32_t cache_blocks() const {
    return static_cast<std::int32_t>(
      std::min<std::int64_t>(options_.kv_cache_tokens / model::block_tokens, 1 << 30));
  }
  [[nodiscard]] bool is_stop(std::int32_t token) const {
    return std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), token)
           != options_.stop_tokens.end();
  }
  [[nodiscard]] finish_reason ended(const sequence& s) const;
  [[nodiscard]] std::int64_t remaining(const sequence& s) const;
  void check(const generation_task& task) const;
  void finish(held s, finish_reason why);
  void admit();
  bool room_for(sequence& s, std::int32_t tokens);
  void preempt_youngest();
  void prefill();
  std::int32_t prefill_round(std::int32_t budget);
  void decode();
  bool sample_one(sequence& s, std::size_t row);

  engine_options options_;
  std::shared_ptr<const model::tokenizer> tokens_;
  model::decoder decoder_;
  engine_cache cache_;
  sampler sampler_;
  version current_ = no_version;
  std::deque<held> waiting_;
  std::vector<held> running_; ///< in the order of admission
  std::vector<rollout> finished_;
  std::unordered_set<rollout_id> ids_;
  std::uint64_t next_order_ = 0;
  engine_statistics count_;
  std::vector<model::token_run> runs_;
  std::vector<sequence*> batch_;
};

void cpu_engine::check(const generation_task& task) const {
  const auto& r = task.so_far;
  const auto need = [&](bool ok, const std::string& what) {
    if (!ok)
      throw user_error("rollout " + to_string(r.id) + ": " + what);
  };
  const auto n = r.tokens.size();
  need(r.prompt_length >= 1 && static_cast<std::size_t>(r.prompt_length) <= n,
       "its prompt has " + std::to_string(r.prompt_length) + " tokens of "
         + std::to_string(n) + "; generation needs at least one");
  need(r.behaviour_logp.size() == n && r.versions.size() == n,
       "tokens, behaviour_logp and versions have " + std::to_string(n) + ", "
         + std::to_string(r.behaviour_logp.size()) + " and " + std::to_string(r.versions.size())
         + " entries; they must be equally long");
  need(r.prompt_length < options_.max_context,
       "its prompt of " + std::to_string(r.prompt_length) + " tokens leaves no room in a context of "
         + std::to_string(options_.max_context));
  for (const auto t : r.tokens)
    need(t >= 0 && t < decoder_.config().vocab_size,
         "token " + std::to_string(t) + " is outside the model's vocabulary of "
           + std::to_string(decoder_.config().vocab_size));
}

void cpu_engine::submit(generation_task task) {
  check(task);
  ensure(ids_.insert(task.so_far.id).second,
         [&] { return "rollout " + to_string(task.so_far.id) + " submitted twice"; });
  auto s = std::make_unique<sequence>();
  s->answer = std::move(task.so_far);
  s->sampling = task.sampling;
  s->order = next_order_++;
  waiting_.push_back(std::move(s));
}

bool cpu_engine::cancel(rollout_id id) {
  if (ids_.erase(id) == 0)
    return false;
  const auto is_it = [&](const held& s) { return s->answer.id == id; };
  if (const auto w = std::find_if(waiting_.begin(), waiting_.end(), is_it); w != waiting_.end()) {
    waiting_.erase(w);
    return true;
  }
  const auto r = std::find_if(running_.begin(), running_.end(), is_it);
  ensure(r != running_.end(), [&] { return "rollout " + to_string(id) + " is nowhere"; });
  cache_.release(**r);
  running_.erase(r);
  return true;
}

finish_reason cpu_engine::ended(const sequence& s) const {
  const auto generated = s.answer.generated();
  if (generated > 0 && !s.sampling.ignore_eos && is_stop(s.answer.tokens.back()))
    return finish_reason::stop;
  return remaining(s) <= 0 ? finish_reason::length : finish_reason::none;
}

std::int64_t cpu_engine::remaining(const sequence& s) const {
  const auto context = options_.max_context - s.length();
  return s.sampling.max_tokens > 0
           ? std::min(context, s.sampling.max_tokens - s.answer.generated()) : context;
}

void cpu_engine::finish(held s, finish_reason why) {
  auto& r = s->answer;
  r.finish = why;
  r.finished_at = options_.clock();
  if (tokens_)
    r.text = tokens_->decode(std::span(r.tokens).subspan(static_cast<std::size_t>(r.prompt_length)));
  cache_.release(*s);
  ids_.erase(r.id);
  finished_.push_back(std::move(r));
}

void cpu_engine::admit() {
  // Blocks that those running will need for what they have now, and do not hold yet.
  std::int64_t promised = 0;
  for (const auto& s : running_)
    promised += std::max<std::int64_t>(
      0, model::blocks_for(s->length()) - static_cast<std::int64_t>(s->blocks.size()));
  while (!waiting_.empty() && static_cast<std::int32_t>(running_.size()) < options_.max_batch) {
    auto& next = *waiting_.front();
    const std::int64_t need = model::blocks_for(next.length());
    const auto over = ended(next);
    if (over == finish_reason::none && need + promised > cache_.available())
      return;
    auto s = std::move(waiting_.front());
    waiting_.pop_front();
    if (over != finish_reason::none) {
      finish(std::move(s), over);
      continue;
    }
    promised += need;
    if (s->answer.started_at == 0)
      s->answer.started_at = options_.clock();
    running_.push_back(std::move(s));
  }
}

void cpu_engine::preempt_youngest() {
  auto s = std::move(running_.back());
  running_.pop_back();
  cache_.release(*s);
  waiting_.push_front(std::move(s));
  ++count_.preemptions;
}

/// Finds blocks for the first `tokens` tokens of a running sequence, putting younger ones back for
/// it. False when it was itself the youngest and is put back.
bool cpu_engine::room_for(sequence& s, std::int32_t tokens) {
  while (!cache_.reserve(s, tokens)) {
    const bool itself = running_.back().get() == &s;
    ensure(!itself || running_.size() > 1,
           [&] { return "one sequence of " + std::to_string(tokens)
                        + " tokens does not fit an empty cache"; });
    preempt_youngest();
    if (itself)
      return false;
  }
  return true;
}

/// Computes up to `budget` tokens that sequences need before they can be decoded; each piece that
/// several have in common is computed by the first and waits for the next round in the others.
std::int32_t cpu_engine::prefill_round(std::int32_t budget) {
  runs_.clear();
  batch_.clear();
  std::vector<engine_cache::piece> claimed;
  std::vector<std::int32_t> takes;
  std::int32_t used = 0;
  for (std::size_t i = 0; i < running_.size() && used < budget; ++i) {
    auto& s = *running_[i];
    if (s.ready())
      continue;
    count_.reused_tokens += cache_.adopt(s, current_);
    if (s.ready())
      continue;
    const auto piece = cache_.next_piece(s);
    if (!piece.tokens.empty()) {
      if (std::any_of(claimed.begin(), claimed.end(),
                      [&](const auto& other) { return other.equals(piece); }))
        continue;
      claimed.push_back(piece);
    }
    const auto take = std::min(budget - used, s.needed() - s.cached);
    if (!room_for(s, s.cached + take))
      continue;
    batch_.push_back(&s);
    takes.push_back(take);
    used += take;
  }
  // Making room put back younger sequences only, which come later in the list: none in the batch.
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    const auto& s = *batch_[i];
    runs_.push_back({std::span(s.answer.tokens).subspan(static_cast<std::size_t>(s.cached),
                                                        static_cast<std::size_t>(takes[i])),
                     s.cached, s.blocks.data(), false});
  }
  if (runs_.empty())
    return 0;
  decoder_.forward(runs_);
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    auto& s = *batch_[i];
    const auto again = std::clamp(s.computed_before - s.cached, 0, takes[i]);
    count_.reprefilled_tokens += again;
    count_.prefilled_tokens += takes[i] - again;
    s.cached += takes[i];
    cache_.publish(s, current_);
  }
  return used;
}

void cpu_engine::prefill() {
  for (auto left = options_.prefill_tokens; left > 0;) {
    const auto used = prefill_round(left);
    if (used == 0)
      return;
    left -= used;
  }
}

/// Samples the next token of `s` from row `row` of the logits; true when that ended it.
bool cpu_engine::sample_one(sequence& s, std::size_t row) {
  auto& r = s.answer;
  const bool may_not_end = !s.sampling.ignore_eos && r.generated() < s.sampling.min_tokens;
  const auto position = s.length();
  const auto draw = sampling_draw(s.sampling.seed, r.prompt_id, r.id.sample, position);
  const std::span logits(decoder_.logits(row),
                         static_cast<std::size_t>(decoder_.config().vocab_size));
  const auto drawn = sampler_.sample(logits, s.sampling, draw,
                                     may_not_end ? std::span<const std::int32_t>(options_.stop_tokens)
                                                 : std::span<const std::int32_t>());
  r.tokens.push_back(drawn.token);
  r.behaviour_logp.push_back(drawn.logp);
  r.versions.push_back(current_.value);
  ++s.cached;
  ++count_.sampled_tokens;
  if (s.cached % model::block_tokens == 0)
    cache_.publish(s, current_);
  return ended(s) != finish_reason::none;
}

void cpu_engine::decode() {
  // Oldest first; making room only ever puts back younger ones, which are then not reached.
  batch_.clear();
  for (std::size_t i = 0; i < running_.size(); ++i)
    if (running_[i]->ready() && room_for(*running_[i], running_[i]->length()))
      batch_.push_back(running_[i].get());
  if (batch_.empty())
    return;
  runs_.clear();
  for (const auto* s : batch_)
    runs_.push_back({std::span(s->answer.tokens).last(1), s->needed(), s->blocks.data(), true});
  decoder_.forward(runs_);
  count_.decoded_rows += static_cast<std::int64_t>(batch_.size());
  bool any = false;
  for (std::size_t i = 0; i < batch_.size(); ++i)
    any = sample_one(*batch_[i], i) || any;
  if (!any)
    return;
  std::vector<held> rest;
  rest.reserve(running_.size());
  for (auto& s : running_)
    if (const auto why = ended(*s); why != finish_reason::none)
      finish(std::move(s), why);
    else
      rest.push_back(std::move(s));
  running_ = std::move(rest);
}

std::vector<rollout> cpu_engine::step() {
  ensure(current_ != no_version, "an engine steps before its first weights were installed");
  ++count_.steps;
  admit();
  prefill();
  decode();
  return std::exchange(finished_, {});
}

std::vector<rollout> cpu_engine::drain() {
  std::vector<held> all;
  for (auto& s : running_) {
    cache_.release(*s);
    all.push_back(std::move(s));
  }
  for (auto& s : waiting_)
    all.push_back(std::move(s));
  running_.clear();
  waiting_.clear();
  ids_.clear();
  std::ranges::sort(all, {}, [](const held& s) { return s->order; });
  std::vector<rollout> out;
  for (auto& s : all)
    out.push_back(std::move(s->answer));
  return out;
}

std::vector<rollout> cpu_engine::partials() const {
  std::vector<const sequence*> all;
  for (const auto& s : running_)
    all.push_back(s.get());
  for (const auto& s : waiting_)
    all.push_back(s.get());
  std::ranges::sort(all, {}, [](const sequence* s) { return s->order; });
  std::vector<rollout> out;
  for (const auto* s : all)
    out.push_back(s->answer);
  return out;
}

std::int64_t cpu_engine::outstanding_tokens() const {
  std::int64_t total = 0;
  for (const auto& s : running_)
    total += remaining(*s);
  for (const auto& s : waiting_)
    total += std::max<std::int64_t>(0, remaining(*s));
  return total;
}

swap_report cpu_engine::install(version v) {
  ensure(v > current_, [&] { return "install " + to_string(v) + " over " + to_string(current_); });
  swap_report report{.from = current_, .to = v};
  const auto begin = options_.clock();
  decoder_.swap();
  current_ = v;
  const auto swapped = options_.clock();
  std::vector<sequence*> interrupted;
  for (const auto& s : running_)
    interrupted.push_back(s.get());
  if (options_.kv == kv_on_swap::recompute)
    report.reprefilled_tokens = cache_.recompute(interrupted, v, options_.prefill_tokens);
  else
    cache_.keep(interrupted);
  const auto end = options_.clock();
  count_.reprefilled_tokens += report.reprefilled_tokens;
  report.pause_s = end - begin;
  report.prefill_s = end - swapped;
  report.bytes = decoder_.weight_bytes();
  report.running = static_cast<std::int64_t>(running_.size());
  return report;
}

} // namespace

std::unique_ptr<engine> make_engine(const engine_options& options,
                                    const model::model_config& config,
                                    std::shared_ptr<const model::tokenizer> tokens) {
  return std::make_unique<cpu_engine>(options, config, std::move(tokens));
}

} // namespace millrace::generation
