#pragma once

// Real fakes: the same interfaces as the engine, the weight intake, the prompt feed and the trainer,
// with seeded lengths, latencies and faults instead of a model.

#include "actors/receiver_actor.hpp"
#include "actors/trainer_actor.hpp"
#include "rollout/controller.hpp"
#include "rollout/engine.hpp"
#include "rollout/reward.hpp"
#include "weightsync/publisher_machine.hpp"

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>

namespace millrace::simulation {

/// Prompt k is "k", answered by "k".
class fake_feed : public prompt_feed {
public:
  fed_prompt next() override;
  [[nodiscard]] nlohmann::json cursor() const override;
  void seek(const nlohmann::json& cursor) override;

private:
  std::int64_t next_ = 0;
};

/// What the publishing side's buffers hold, by version: every word of an intact version is the
/// version's number.
struct fake_memory {
  std::map<std::int32_t, std::array<std::int32_t, 8>> words;
};

/// Generates one token per step for each rollout, until its seeded length.
class fake_engine : public generation::engine {
public:
  /// `mean_length` in tokens; lengths are exponential: most are short, a few are very long.
  fake_engine(std::uint64_t seed, double mean_length, std::size_t max_batch);

  void submit(generation_task task) override;
  bool cancel(rollout_id id) override;
  std::vector<rollout> step() override;
  std::vector<rollout> drain() override;
  [[nodiscard]] std::vector<rollout> partials() const override;
  [[nodiscard]] std::size_t running() const override { return tasks_.size(); }
  [[nodiscard]] std::size_t waiting() const override { return 0; }
  [[nodiscard]] std::int64_t outstanding_tokens() const override { return 0; }
  [[nodiscard]] std::vector<tensor_view> staging() override;
  void prepare() override {}
  swap_report install(version v) override;
  [[nodiscard]] version current() const override { return current_; }
  [[nodiscard]] generation::engine_statistics statistics() const override { return statistics_; }

private:
  struct running_task {
    generation_task task;
    std::int32_t length;
  };
  std::mt19937_64 random_;
  double mean_length_;
  std::size_t max_batch_;
  std::map<rollout_id, running_task> tasks_;
  std::array<std::int32_t, 8> staged_{};
  version current_ = no_version;
  generation::engine_statistics statistics_;
};

/// Copies a version's words into the engine's staging buffer; cut or corrupted at times, which it
/// reports, as checksums do.
class fake_intake : public weight_intake {
public:
  fake_intake(std::shared_ptr<fake_memory> memory, std::vector<tensor_view> staging,
              std::function<bool()> fault);
  intake_report pull(const std::string& manifest, std::function<void()> on_progress) override;

private:
  std::shared_ptr<fake_memory> memory_;
  std::vector<tensor_view> staging_;
  std::function<bool()> fault_;
};

/// Pays 1 when the answer ends in an even number of tokens, never for the prompt's sake.
class fake_reward : public reward {
public:
  [[nodiscard]] verdict judge(const prompt& question, std::string_view answer,
                              finish_reason finish) const override;
};

/// Checks what reaches the trainer: staleness, exactly once, whole arrays, true versions.
class batch_checker {
public:
  batch_checker(std::int32_t eta, std::int64_t batch_size) : eta_(eta), batch_size_(batch_size) {}
  /// Throws invariant_error on a violation; returns trained tokens.
  std::int64_t check(const train_batch& batch);
  [[nodiscard]] std::size_t trained() const { return seen_.size(); }
  [[nodiscard]] std::int32_t staleness_max() const { return staleness_max_; }

private:
  std::int32_t eta_;
  std::int64_t batch_size_;
  std::set<rollout_id> seen_;
  std::int32_t staleness_max_ = 0;
};

} // namespace millrace::simulation
