#include "rollout/backend_engine.hpp"

#include "rollout/batching_engine.hpp"
#include "runtime/error.hpp"
#include "runtime/random.hpp"

#include <algorithm>
#include <cmath>

namespace millrace::generation {

namespace {

std::string_view name_of(dtype t) {
  return t == dtype::f32 ? "f32" : t == dtype::bf16 ? "bf16" : "i8";
}

plugin::sampling to_plugin(const sampling_params& p) {
  return {p.temperature, p.top_p, p.min_p, p.top_k, p.max_tokens, p.min_tokens};
}

} // namespace

backend_engine::backend_engine(plugins::origin from, std::unique_ptr<plugin::generator> backend,
                               engine_options options, const model::model_config& config,
                               std::shared_ptr<const model::tokenizer> tokens)
  : from_(std::move(from)), backend_(std::move(backend)),
    options_(resolved(std::move(options), config, tokens.get())), vocabulary_(config.vocab_size),
    tokens_(std::move(tokens)) {
  stage(config);
}

/// Room for the next version's weights, in the engine's own form (engine.hpp).
void backend_engine::stage(const model::model_config& config) {
  const auto add = [&](std::string name, dtype type, std::vector<std::int64_t> shape) {
    staging_.push_back({std::move(name), type, std::move(shape), nullptr});
  };
  for (const auto& p : model::parameter_shapes(config)) {
    const bool matrix = p.shape.size() == 2;
    add(p.name, matrix ? options_.weights : dtype::f32, p.shape);
    if (matrix && options_.weights == dtype::i8)
      add(p.name + "_scale", dtype::f32, {p.shape[0]});
  }
  const auto padded = [](const tensor_view& t) { return (t.bytes() + 63) / 64 * 64; };
  std::size_t bytes = 0;
  for (const auto& t : staging_)
    bytes += padded(t);
  memory_.resize(bytes);
  auto* at = memory_.data();
  for (auto& t : staging_)
    t.data = std::exchange(at, at + padded(t));
}

void backend_engine::submit(generation_task task) {
  const auto& r = task.so_far;
  const auto need = [&](bool ok, const char* what) {
    if (!ok)
      throw user_error("rollout " + to_string(r.id) + ": " + what);
  };
  need(r.prompt_length >= 1 && r.generated() >= 0, "has no prompt to generate from");
  need(r.tokens.size() == r.versions.size() && r.tokens.size() == r.behaviour_logp.size(),
       "its arrays are not equally long");
  need(r.prompt_length < options_.max_context, "its prompt leaves no room in the context");
  need(std::all_of(r.tokens.begin(), r.tokens.end(),
                   [&](auto t) { return t >= 0 && t < vocabulary_; }),
       "has a token outside the model's vocabulary");
  waiting_.push_back(std::move(task));
}

bool backend_engine::cancel(rollout_id id) {
  if (std::erase_if(waiting_, [&](const auto& t) { return t.so_far.id == id; }) > 0)
    return true;
  for (auto it = running_.begin(); it != running_.end(); ++it)
    if (it->second.so_far.id == id) {
      plugins::guarded(from_, "end() threw", [&] { backend_->end(it->first); });
      running_.erase(it);
      return true;
    }
  return false;
}

std::int64_t backend_engine::remaining(const generation_task& t) const {
  const auto context = options_.max_context - static_cast<std::int64_t>(t.so_far.tokens.size());
  return t.sampling.max_tokens > 0
           ? std::min<std::int64_t>(context, t.sampling.max_tokens - t.so_far.generated())
           : context;
}

finish_reason backend_engine::ended(const generation_task& t) const {
  const auto& stops = options_.stop_tokens;
  if (t.so_far.generated() > 0 && !t.sampling.ignore_eos
      && std::find(stops.begin(), stops.end(), t.so_far.tokens.back()) != stops.end())
    return finish_reason::stop;
  return remaining(t) <= 0 ? finish_reason::length : finish_reason::none;
}

rollout backend_engine::closed(generation_task t, finish_reason why) const {
  auto r = std::move(t.so_far);
  r.finish = why;
  r.finished_at = options_.clock();
  if (tokens_)
    r.text = tokens_->decode(std::span(r.tokens).subspan(static_cast<std::size_t>(r.prompt_length)));
  return r;
}

void backend_engine::admit(std::vector<rollout>& finished) {
  while (!waiting_.empty() && running_.size() < static_cast<std::size_t>(options_.max_batch)) {
    auto t = std::move(waiting_.front());
    waiting_.pop_front();
    if (const auto over = ended(t); over != finish_reason::none) {
      finished.push_back(closed(std::move(t), over));
      continue;
    }
    if (t.so_far.started_at == 0)
      t.so_far.started_at = options_.clock();
    const auto handle = next_++;
    const auto seed = philox::draw({static_cast<std::uint32_t>(t.so_far.prompt_id),
                                    static_cast<std::uint32_t>(t.so_far.id.sample),
                                    static_cast<std::uint32_t>(t.so_far.tokens.size()), 1},
                                   t.sampling.seed);
    plugins::guarded(from_, "start() threw", [&] {
      backend_->start(handle, t.so_far.tokens, to_plugin(t.sampling),
                      std::uint64_t{seed[0]} << 32 | seed[1]);
    });
    count_.prefilled_tokens += static_cast<std::int64_t>(t.so_far.tokens.size());
    running_.emplace(handle, std::move(t));
  }
}

void backend_engine::append(const plugin::sampled& s, std::vector<rollout>& finished) {
  const auto it = running_.find(s.sequence);
  if (it == running_.end())
    plugins::blame(from_, "step()", "gave a token for sequence " + std::to_string(s.sequence)
                                      + ", which is not running");
  if (s.token.token < 0 || s.token.token >= vocabulary_)
    plugins::blame(from_, "step()", "gave token " + std::to_string(s.token.token)
                                      + ", expected one below " + std::to_string(vocabulary_));
  if (!std::isfinite(s.token.logp) || s.token.logp > 1e-3F)
    plugins::blame(from_, "step()", "gave the log-prob " + std::to_string(s.token.logp)
                                      + ", expected a finite one of at most 0");
  auto& r = it->second.so_far;
  r.tokens.push_back(s.token.token);
  r.behaviour_logp.push_back(std::min(s.token.logp, 0.0F));
  r.versions.push_back(current_.value);
  ++count_.sampled_tokens;
  ++count_.decoded_rows;
  if (const auto over = ended(it->second); over != finish_reason::none) {
    plugins::guarded(from_, "end() threw", [&] { backend_->end(it->first); });
    finished.push_back(closed(std::move(it->second), over));
    running_.erase(it);
  }
}

std::vector<rollout> backend_engine::step() {
  std::vector<rollout> finished;
  admit(finished);
  if (running_.empty())
    return finished;
  ++count_.steps;
  const auto made = plugins::guarded(from_, "step() threw", [&] { return backend_->step(); });
  for (const auto& s : made)
    append(s, finished);
  return finished;
}

std::vector<rollout> backend_engine::drain() {
  auto out = partials();
  for (const auto& [handle, t] : running_)
    plugins::guarded(from_, "end() threw", [&, h = handle] { backend_->end(h); });
  running_.clear();
  waiting_.clear();
  return out;
}

std::vector<rollout> backend_engine::partials() const {
  std::vector<rollout> out;
  for (const auto& [handle, t] : running_)
    out.push_back(t.so_far);
  for (const auto& t : waiting_)
    out.push_back(t.so_far);
  return out;
}

std::int64_t backend_engine::outstanding_tokens() const {
  std::int64_t n = 0;
  for (const auto& [handle, t] : running_)
    n += remaining(t);
  for (const auto& t : waiting_)
    n += std::max<std::int64_t>(0, remaining(t));
  return n;
}

swap_report backend_engine::install(version v) {
  ensure(v > current_, [&] { return "install " + to_string(v) + " over " + to_string(current_); });
  swap_report report{.from = current_, .to = v};
  const auto begin = options_.clock();
  const bool keep = options_.kv == kv_policy::keep;
  std::vector<plugin::weight> weights;
  for (const auto& t : staging_) {
    weights.push_back({t.name, name_of(t.type), t.shape, t.data});
    report.bytes += static_cast<std::int64_t>(t.bytes());
  }
  plugins::guarded(from_, "install() threw", [&] { backend_->install(weights, keep); });
  current_ = v;
  if (!keep)
    for (const auto& [handle, t] : running_)
      report.reprefilled_tokens += static_cast<std::int64_t>(t.so_far.tokens.size());
  count_.reprefilled_tokens += report.reprefilled_tokens;
  report.pause_s = options_.clock() - begin;
  report.running = static_cast<std::int64_t>(running_.size());
  return report;
}

} // namespace millrace::generation
