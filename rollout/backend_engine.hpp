#pragma once

#include "rollout/generator_plugins.hpp"

#include <deque>
#include <map>
#include <vector>

namespace millrace::generation {

/// A plugin's generator as an engine. The plugin makes tokens and their log-probs; versions, ends,
/// limits, texts and partial rollouts are kept here, and tokens that can't be are an error that names
/// the plugin.
class backend_engine final : public engine {
public:
  backend_engine(plugins::origin from, std::unique_ptr<plugin::generator> backend,
                 engine_options options, const model::model_config& config,
                 std::shared_ptr<const model::tokenizer> tokens);

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
  [[nodiscard]] engine_statistics statistics() const override { return count_; }

private:
  [[nodiscard]] finish_reason ended(const generation_task& t) const;
  [[nodiscard]] std::int64_t remaining(const generation_task& t) const;
  void admit(std::vector<rollout>& finished);
  void append(const plugin::sampled& s, std::vector<rollout>& finished);
  [[nodiscard]] rollout closed(generation_task t, finish_reason why) const;
  void stage(const model::model_config& config);

  plugins::origin from_;
  std::unique_ptr<plugin::generator> backend_;
  engine_options options_;
  std::int64_t vocabulary_;
  std::shared_ptr<const model::tokenizer> tokens_;
  std::vector<std::byte> memory_;
  std::vector<tensor_view> staging_;
  version current_ = no_version;
  std::deque<generation_task> waiting_;
  std::map<std::uint64_t, generation_task> running_; ///< by the plugin's handle, in its order
  std::uint64_t next_ = 1;
  engine_statistics count_;
};

} // namespace millrace::generation
