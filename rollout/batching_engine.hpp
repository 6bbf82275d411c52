#pragma once

#include "rollout/engine.hpp"
#include "rollout/engine_cache.hpp"
#include "rollout/sampler.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

namespace millrace::generation {

/// The options with every default filled in. Throws user_error for those that can't work.
engine_options resolved(engine_options options, const model::model_config& config,
                        const model::tokenizer* tokens);

/// By options.decoder, or else the CPU's.
std::unique_ptr<model::decoder> make_decoder(const engine_options& options,
                                             const model::model_config& config,
                                             std::int32_t blocks);

/// The engine over a decoder, the CPU's or another: what comes and goes is in batching_engine.cpp,
/// what a step does in engine_step.cpp.
class batching_engine final : public engine {
public:
  batching_engine(const engine_options& options, const model::model_config& config,
                  std::shared_ptr<const model::tokenizer> tokens)
      : options_(resolved(options, config, tokens.get())), tokens_(std::move(tokens)),
        decoder_(make_decoder(options_, config, cache_blocks())),
        cache_(*decoder_, cache_blocks(), options_.share_prefixes),
        samplers_(static_cast<std::size_t>(options_.threads)) {
    count_.kv_blocks = cache_.capacity();
  }

  void submit(generation_task task) override;
  void watch(rollout_id id, std::shared_ptr<likely_tokens> into) override;
  bool cancel(rollout_id id) override;
  std::vector<rollout> step() override;
  std::vector<rollout> drain() override;
  [[nodiscard]] std::vector<rollout> partials() const override;
  [[nodiscard]] std::size_t running() const override { return running_.size(); }
  [[nodiscard]] std::size_t waiting() const override { return waiting_.size(); }
  [[nodiscard]] std::int64_t outstanding_tokens() const override;
  [[nodiscard]] std::vector<tensor_view> staging() override { return decoder_->staging(); }
  void prepare() override { decoder_->prepare(); }
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
  void draw_all();
  [[nodiscard]] sampled_token draw(const sequence& s, std::size_t row, sampler& by);
  bool append(sequence& s, const sampled_token& drawn);

  engine_options options_;
  std::shared_ptr<const model::tokenizer> tokens_;
  std::unique_ptr<model::decoder> decoder_;
  engine_cache cache_;
  std::vector<sampler> samplers_; ///< one for each thread
  version current_ = no_version;
  std::deque<held> waiting_;
  std::vector<held> running_; ///< in the order of admission
  std::vector<rollout> finished_;
  std::unordered_set<rollout_id> ids_;
  std::uint64_t next_order_ = 0;
  engine_statistics count_;
  std::vector<model::token_run> runs_;
  std::vector<sequence*> batch_;
  std::vector<sampled_token> drawn_;
};

} // namespace millrace::generation
