#include "rollout/batching_engine.hpp"

#include "runtime/error.hpp"
#include "runtime/model/cpu_decoder.hpp"

#include <string>

namespace millrace::generation {

void batching_engine::check(const generation_task& task) const {
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
  need(tokens_ || task.sampling.stop.empty(), "stop strings need a tokenizer");
  for (const auto t : r.tokens)
    need(t >= 0 && t < decoder_->config().vocab_size,
         "token " + std::to_string(t) + " is outside the model's vocabulary of "
           + std::to_string(decoder_->config().vocab_size));
}

void batching_engine::submit(generation_task task) {
  check(task);
  ensure(ids_.insert(task.so_far.id).second,
         [&] { return "rollout " + to_string(task.so_far.id) + " submitted twice"; });
  auto s = std::make_unique<sequence>();
  s->answer = std::move(task.so_far);
  s->sampling = task.sampling;
  if (!s->sampling.stop.empty()) {
    s->stops = std::make_unique<model::answer_text>(*tokens_, s->sampling.stop);
    for (auto i = s->answer.prompt_length; i < s->length(); ++i)
      s->stops->add(s->answer.tokens[static_cast<std::size_t>(i)],
                    i + 1 - s->answer.prompt_length >= s->sampling.min_tokens);
  }
  s->order = next_order_++;
  waiting_.push_back(std::move(s));
}

void batching_engine::watch(rollout_id id, std::shared_ptr<likely_tokens> into) {
  if (options_.draw) // whose distribution only the plugin knows
    return engine::watch(id, nullptr);
  const auto is_it = [&](const held& s) { return s->answer.id == id; };
  const auto w = std::find_if(waiting_.begin(), waiting_.end(), is_it);
  const auto r = std::find_if(running_.begin(), running_.end(), is_it);
  ensure(w != waiting_.end() || r != running_.end(),
         [&] { return "rollout " + to_string(id) + " is nowhere"; });
  (w != waiting_.end() ? *w : *r)->watched = std::move(into);
}

bool batching_engine::cancel(rollout_id id) {
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

finish_reason batching_engine::ended(const sequence& s) const {
  const auto generated = s.answer.generated();
  if (generated > 0 && !s.sampling.ignore_eos && is_stop(s.answer.tokens.back()))
    return finish_reason::stop;
  if (s.stops && s.stops->stopped())
    return finish_reason::stop;
  return remaining(s) <= 0 ? finish_reason::length : finish_reason::none;
}

std::int64_t batching_engine::remaining(const sequence& s) const {
  const auto context = options_.max_context - s.length();
  return s.sampling.max_tokens > 0
           ? std::min(context, s.sampling.max_tokens - s.answer.generated()) : context;
}

void batching_engine::finish(held s, finish_reason why) {
  auto& r = s->answer;
  r.finish = why;
  r.finished_at = options_.clock();
  if (s->stops && s->stops->stopped())
    r.text = s->stops->text();
  else if (tokens_)
    r.text = tokens_->decode(std::span(r.tokens).subspan(static_cast<std::size_t>(r.prompt_length)));
  cache_.release(*s);
  ids_.erase(r.id);
  finished_.push_back(std::move(r));
}

std::vector<rollout> batching_engine::drain() {
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

std::vector<rollout> batching_engine::partials() const {
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

std::int64_t batching_engine::outstanding_tokens() const {
  std::int64_t total = 0;
  for (const auto& s : running_)
    total += remaining(*s);
  for (const auto& s : waiting_)
    total += std::max<std::int64_t>(0, remaining(*s));
  return total;
}

swap_report batching_engine::install(version v) {
  ensure(v > current_, [&] { return "install " + to_string(v) + " over " + to_string(current_); });
  swap_report report{.from = current_, .to = v};
  const auto begin = options_.clock();
  decoder_->swap();
  current_ = v;
  const auto swapped = options_.clock();
  std::vector<sequence*> interrupted;
  for (const auto& s : running_)
    interrupted.push_back(s.get());
  if (options_.kv == kv_policy::recompute)
    report.reprefilled_tokens = cache_.recompute(interrupted, v, options_.prefill_tokens);
  else
    cache_.keep(interrupted);
  const auto end = options_.clock();
  count_.reprefilled_tokens += report.reprefilled_tokens;
  report.pause_s = end - begin;
  report.prefill_s = end - swapped;
  report.bytes = decoder_->weight_bytes();
  report.running = static_cast<std::int64_t>(running_.size());
  return report;
}

std::unique_ptr<model::decoder> make_decoder(const engine_options& options,
                                             const model::model_config& config,
                                             std::int32_t blocks) {
  if (options.decoder)
    return options.decoder(config, {blocks, options.max_context, options.threads, options.weights});
  return std::make_unique<model::cpu_decoder>(config, blocks, options.max_context, options.threads,
                                              options.weights);
}

std::unique_ptr<engine> make_engine(const engine_options& options,
                                    const model::model_config& config,
                                    std::shared_ptr<const model::tokenizer> tokens) {
  return std::make_unique<batching_engine>(options, config, std::move(tokens));
}

} // namespace millrace::generation
