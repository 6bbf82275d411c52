#include "trainer/supervised.hpp"

#include "runtime/error.hpp"
#include "trainer/collectives.hpp"
#include "trainer/parallel.hpp"
#include "trainer/scoring.hpp"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cmath>

namespace millrace::trainer {

namespace {

/// The arrays behind training_sequence, for demonstrations: the answer counts as sampled.
struct demonstrated_sequences {
  std::vector<std::vector<std::int32_t>> versions;
  std::vector<std::vector<float>> logp;
  std::vector<training_sequence> sequences;

  explicit demonstrated_sequences(std::span<const demonstration> batch) {
    for (const auto& d : batch) {
      ensure(d.prompt_length >= 1 || d.tokens.empty(), "a demonstration without a prompt");
      auto& v = versions.emplace_back(d.tokens.size(), 0);
      std::fill_n(v.begin(), std::min<std::size_t>(d.prompt_length, v.size()), -1);
      logp.emplace_back(d.tokens.size(), 0.0F);
    }
    for (std::size_t i = 0; i < batch.size(); ++i)
      sequences.push_back({.group = static_cast<std::int32_t>(i), .tokens = batch[i].tokens,
                           .behaviour_logp = logp[i], .versions = versions[i]});
  }
};

} // namespace

supervised::supervised(model::transformer& network, supervised_options options, rank_mesh* mesh)
    : network_(network), options_(options), mesh_(mesh),
      optimizer_(network, options.optimizer, mesh, options.zero1) {
  if (mesh && mesh->data().size() > 1)
    reducer_ = std::make_unique<gradient_reducer>(network, mesh->data(), options.zero1);
}

supervised_statistics supervised::step(std::span<const demonstration> batch) {
  auto started = std::chrono::steady_clock::now();
  demonstrated_sequences made(batch);
  token_layout layout(made.sequences);
  batch_scorer scorer(made.sequences, layout, options_.micro_batch_tokens, options_.packing, 1, true,
                      mesh_ ? &mesh_->data() : nullptr);
  supervised_statistics result;
  result.tokens = layout.tokens();
  result.learning_rate = options_.learning_rate.at(steps_);
  if (result.tokens == 0)
    return result;
  std::vector<std::size_t> all(batch.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = i;
  auto parts = scorer.split_share(all);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& part = parts[i];
    if (reducer_ && i + 1 == parts.size())
      reducer_->arm();
    auto scored = score_tokens(network_, pack(made.sequences, part), 1);
    auto loss = scored.logp.sum().div(-static_cast<double>(result.tokens));
    loss.backward();
    result.loss += loss.item<double>();
    result.token_accuracy += scored.top1.sum().item<double>();
  }
  if (reducer_)
    reducer_->finish();
  sum_partial_gradients(network_);
  if (reducer_) {
    result.loss = mesh_->data().sum(result.loss);
    result.token_accuracy = mesh_->data().sum(result.token_accuracy);
  }
  result.token_accuracy /= static_cast<double>(result.tokens);
  if (std::isfinite(result.loss)) {
    auto update = optimizer_.step(result.learning_rate);
    result.grad_norm = update.grad_norm;
    result.skipped = !update.applied;
  } else {
    optimizer_.discard();
    result.skipped = true;
  }
  ++steps_;
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  result.seconds = took.count();
  return result;
}

} // namespace millrace::trainer
