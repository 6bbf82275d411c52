// What one step of the engine does: admission, prompts, one token for every ready sequence.

#include "rollout/batching_engine.hpp"
#include "runtime/error.hpp"
#include "runtime/random.hpp"

#include <exception>
#include <string>

namespace millrace::generation {

void batching_engine::admit() {
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

void batching_engine::preempt_youngest() {
  auto s = std::move(running_.back());
  running_.pop_back();
  cache_.release(*s);
  waiting_.push_front(std::move(s));
  ++count_.preemptions;
}

/// Finds blocks for the first `tokens` tokens of a running sequence, putting younger ones back for
/// it. False when it was itself the youngest and is put back.
bool batching_engine::room_for(sequence& s, std::int32_t tokens) {
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
std::int32_t batching_engine::prefill_round(std::int32_t budget) {
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
  decoder_->forward(runs_);
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

void batching_engine::prefill() {
  for (auto left = options_.prefill_tokens; left > 0;) {
    const auto used = prefill_round(left);
    if (used == 0)
      return;
    left -= used;
  }
}

/// The next token of `s`, from row `row` of the logits.
sampled_token batching_engine::draw(const sequence& s, std::size_t row, sampler& by) {
  const auto& r = s.answer;
  const bool may_not_end = !s.sampling.ignore_eos && r.generated() < s.sampling.min_tokens;
  const auto decides = sampling_draw(s.sampling.seed, r.prompt_id, r.id.sample, s.length());
  const std::span logits(decoder_->logits(row),
                         static_cast<std::size_t>(decoder_->config().vocab_size));
  const auto forbidden = may_not_end ? std::span<const std::int32_t>(options_.stop_tokens)
                                     : std::span<const std::int32_t>();
  if (options_.draw)
    return options_.draw(logits, s.sampling, decides, forbidden);
  const auto drawn = by.sample(logits, s.sampling, decides, forbidden);
  if (s.watched)
    s.watched->positions.push_back(by.likeliest(logits, s.sampling, drawn, s.watched->count));
  return drawn;
}

/// Draws for the whole batch, by all threads: a vocabulary is long.
void batching_engine::draw_all() {
  drawn_.resize(batch_.size());
  std::vector<std::exception_ptr> problems(samplers_.size());
  const auto draw_some = [&](std::int64_t first, std::int64_t last, int thread) {
    const auto t = static_cast<std::size_t>(thread);
    try {
      for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i)
        drawn_[i] = draw(*batch_[i], i, samplers_[t]);
    } catch (...) {
      problems[t] = std::current_exception();
    }
  };
  decoder_->threads().split(static_cast<std::int64_t>(batch_.size()), 1, draw_some);
  for (const auto& p : problems)
    if (p)
      std::rethrow_exception(p);
}

/// Adds a token to `s`; true when that ended it.
bool batching_engine::append(sequence& s, const sampled_token& drawn) {
  auto& r = s.answer;
  r.tokens.push_back(drawn.token);
  r.behaviour_logp.push_back(drawn.logp);
  r.versions.push_back(current_.value);
  if (s.stops)
    s.stops->add(drawn.token, r.generated() >= s.sampling.min_tokens);
  ++s.cached;
  ++count_.sampled_tokens;
  if (s.cached % model::block_tokens == 0)
    cache_.publish(s, current_);
  return ended(s) != finish_reason::none;
}

void batching_engine::decode() {
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
  decoder_->forward(runs_);
  count_.decoded_rows += static_cast<std::int64_t>(batch_.size());
  draw_all();
  bool any = false;
  for (std::size_t i = 0; i < batch_.size(); ++i)
    any = append(*batch_[i], drawn_[i]) || any;
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

std::vector<rollout> batching_engine::step() {
  ensure(current_ != no_version, "an engine steps before its first weights were installed");
  ++count_.steps;
  admit();
  prefill();
  decode();
  return std::exchange(finished_, {});
}

} // namespace millrace::generation
