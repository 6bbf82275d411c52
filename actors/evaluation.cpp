#include "actors/evaluation.hpp"

#include "actors/engine_device.hpp"
#include "rollout/generator_plugins.hpp"
#include "rollout/openai_engine.hpp"
#include "rollout/tokenized_feed.hpp"
#include "runtime/error.hpp"
#include "runtime/model/weight_transfer.hpp"

#include <algorithm>

namespace millrace {

evaluation::evaluation(const settings& s, const model::model_config& config,
                       std::shared_ptr<const model::tokenizer> tokens, const prompt_source& source,
                       std::shared_ptr<const reward> judge)
  : settings_(s), judge_(std::move(judge)) {
  generation::engine_options o;
  o.max_batch = s.generator.max_batch;
  o.kv_cache_tokens = s.generator.kv_cache_tokens;
  o.threads = s.generator.threads;
  // A device's memory is for the generators and the trainer; half of it does here.
  if (s.generator.device == compute_device::cuda && s.generator.dtype != weight_dtype::fp32)
    o.weights = dtype::bf16;
  place_engine(o, s.generator.device, 0, "generator.device");
  // A server of the generators' has their weights, not those that are evaluated.
  auto own = s;
  if (own.generator.backend.name == generation::openai_backend)
    own.generator.backend = {};
  engine_ = generation::make_engine(own, o, config, tokens,
                                    {std::shared_ptr<const void>(), &source});
  auto count = source.held_out_size();
  if (s.eval.prompts > 0)
    count = std::min<std::int64_t>(count, s.eval.prompts);
  for (std::int64_t i = 0; i < count; ++i) {
    auto p = source.held_out(i);
    auto ids = prompt_tokens(*tokens, p.text);
    if (static_cast<std::int64_t>(ids.size()) + s.sampling.max_tokens
        > config.max_position_embeddings)
      continue;
    prompts_.push_back({std::move(p), std::move(ids)});
  }
}

void evaluation::begin(version v) {
  if (prompts_.empty())
    throw user_error("data.held_out: no held-out prompt leaves room for an answer of "
                     + std::to_string(settings_.sampling.max_tokens) + " tokens in the model's "
                     "context; lower sampling.max_tokens, or hold out more prompts");
  engine_->drain();
  finished_.clear();
  engine_->install({installs_++});
  version_ = v;
  scores_ = {prompts_.size(), settings_.eval.samples};
  expected_ = prompts_.size() * static_cast<std::size_t>(settings_.eval.samples);
  auto sampling = settings_.sampling;
  sampling.temperature = static_cast<float>(settings_.eval.temperature);
  sampling.seed = settings_.seed ^ 0x65766C; // apart from the training stream's
  for (std::size_t i = 0; i < prompts_.size(); ++i)
    for (std::int32_t k = 0; k < settings_.eval.samples; ++k) {
      engine_->submit({blank_rollout({static_cast<std::int64_t>(i), k}, prompts_[i]), sampling});
    }
}

bool evaluation::step() {
  if (finished_.empty()) {
    for (auto& r : engine_->step())
      finished_.push_back(std::move(r));
  } else {
    judge(finished_.front());
    finished_.pop_front();
  }
  return !finished_.empty() || engine_->running() + engine_->waiting() > 0;
}

void evaluation::judge(const rollout& r) {
  const auto prompt = static_cast<std::size_t>(r.id.group);
  scores_.add(prompt, r, judge_->judge(prompts_[prompt].question, r.text, r.finish));
}

evaluation_report evaluation::report() const {
  return {version_, scores_.accuracy(), scores_.reward(), scores_.length(), scores_.truncated(),
          scores_.answers(), scores_.failed(), scores_.last_failure()};
}

double evaluation::progress() const {
  return expected_ == 0 ? 1
                        : static_cast<double>(scores_.answers()) / static_cast<double>(expected_);
}

evaluation_report evaluation::run(version v, std::span<const tensor_view> weights,
                                  const std::function<bool()>& stop) {
  model::transfer_weights(weights, engine_->staging());
  begin(v);
  for (bool more = true; more && !(stop && stop());)
    more = step();
  engine_->drain(); // of what was stopped
  return report();
}

} // namespace millrace
