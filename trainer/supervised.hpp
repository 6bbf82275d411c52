#pragma once

#include "runtime/model/transformer.hpp"
#include "trainer/adamw.hpp"
#include "trainer/batching.hpp"
#include "trainer/demonstration.hpp"
#include "trainer/learning_rate.hpp"
#include "trainer/statistics.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace millrace::trainer {

struct supervised_options {
  learning_rate_schedule learning_rate;
  adamw_options optimizer;
  std::int64_t micro_batch_tokens = 4096;
  micro_batch_packing packing = micro_batch_packing::fewest_sequences;
  bool zero1 = false;
};

/// Maximum likelihood of demonstrated answers, step by step: the warm-up before reinforcement
/// learning. Prompt tokens are read, not learnt.
class supervised {
public:
  /// The network must outlive this, and its gradients are this one's.
  /// With a `mesh`, all its ranks call step() with the same batch.
  supervised(model::transformer& network, supervised_options options, rank_mesh* mesh = nullptr);

  /// One optimiser step; the loss is the mean over all answer tokens of the batch. An empty batch
  /// changes nothing. \throws user_error when a demonstration exceeds the micro-batch budget
  supervised_statistics step(std::span<const demonstration> batch);

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  [[nodiscard]] adamw& optimizer() { return optimizer_; }
  [[nodiscard]] const adamw& optimizer() const { return optimizer_; }

private:
  model::transformer& network_;
  supervised_options options_;
  rank_mesh* mesh_;
  adamw optimizer_;
  std::unique_ptr<gradient_reducer> reducer_;
  std::int64_t steps_ = 0;
};

} // namespace millrace::trainer
