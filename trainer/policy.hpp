#pragma once

#include "runtime/config/settings.hpp"
#include "runtime/messages.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/tokenizer.hpp"
#include "runtime/tensor_view.hpp"
#include "trainer/demonstration.hpp"
#include "trainer/policy_snapshot.hpp"
#include "trainer/statistics.hpp"

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace millrace::trainer {

class rank_mesh;
struct registries;
class old_logit_worker;

/// What in the algorithm's settings would quietly change the mathematics: the texts to be shown.
/// \throws user_error naming what is refused, with what to set instead
[[nodiscard]] std::vector<std::string> check_algorithm(const settings& s,
                                                       const registries* known = nullptr);

/// The policy being trained, with everything that training it needs: network, tokenizer,
/// optimisers, old log-probs, KL reference. What a trainer owns; no torch in sight.
///
/// First warm_up() as often as wanted, then step() from version 0, 1, …; a warm-up step after the
/// first step() is a bug. Used by one thread at a time, which takes settings.trainer.threads for
/// tensor operations whenever it calls in here. With settings.deterministic only deterministic
/// kernels are used, in the whole process.
///
/// With trainer.device "cuda" the model and all that training it needs is on CUDA devices, rank r's on
/// number r of those that its process sees (modulo their count).
///
/// With trainer.parallel this is rank 0, and starts the others (or takes `mesh`, whose ranks wait in
/// follow_rank()); they do what this one does until it is destroyed. All calls then may throw
/// rank_lost (collectives.hpp), after which only destruction is left: a run goes on from its
/// checkpoint, which has everything, whatever dp and tp were.
class policy {
public:
  /// From scratch (settings.model.architecture, settings.tokenizer, weights by settings.seed) or,
  /// where settings.model.path is set, from that Hugging Face folder. `known` names losses and
  /// advantages beside the built-in ones. \throws user_error
  static policy create(const settings& s, const registries* known = nullptr,
                       std::shared_ptr<rank_mesh> mesh = nullptr);

  /// From what save() wrote; settings.model is not looked at. Goes on where that one was: the next
  /// steps give the same bits as if it had never stopped. \throws user_error
  static policy load(const settings& s, const std::filesystem::path& folder,
                     const registries* known = nullptr, std::shared_ptr<rank_mesh> mesh = nullptr);

  policy(policy&&) noexcept;
  policy& operator=(policy&&) noexcept;
  ~policy();

  /// One optimiser step of supervised warm-up. \throws user_error when a demonstration exceeds
  /// trainer.micro_batch_tokens
  supervised_statistics warm_up(std::span<const demonstration> batch);

  /// One training step from current(), which it then advances, even where every update was skipped:
  /// the batch is spent. \throws invariant_error when `from` is another version, or a token is too
  /// stale \throws user_error when a sequence exceeds trainer.micro_batch_tokens; the policy is
  /// then as before
  step_statistics step(version from, std::span<const scored_group> groups,
                       const old_logit_supply& supply = {});

  /// For an actor beside the trainer: computes old log-probs of the steps from current() on. Null
  /// unless algorithm.old_logits is "dedicated". Warm-up ends with this call.
  std::shared_ptr<old_logit_worker> old_logit_helper();

  /// What is legal in the algorithm's settings, but easily not what one thinks: for the log. What
  /// would quietly change the mathematics is refused by create() and load().
  [[nodiscard]] std::vector<std::string> remarks() const;

  /// Version 0 until the first step.
  [[nodiscard]] version current() const;
  [[nodiscard]] std::int64_t warm_up_steps() const;

  /// The parameters' memory, fp32, by Hugging Face's names: valid as long as this, and changed only
  /// by warm_up() and step(). On the trainer's device, unless tp is above 1.
  [[nodiscard]] std::vector<tensor_view> views() const;
  /// The same in host memory: views() where they are there, else copies, which a call after the next
  /// warm_up() or step() overwrites.
  [[nodiscard]] std::vector<tensor_view> host_views() const;
  [[nodiscard]] const model::model_config& config() const;
  [[nodiscard]] const model::tokenizer& tokenizer() const;

  /// Into an existing folder: `model/` in Hugging Face's form, `optimizer.safetensors` (or one such
  /// file for each rank), `trainer.json`. For checkpoint_store::save(). \throws user_error when the
  /// disk refuses
  void save(const std::filesystem::path& folder) const;

  /// What save() would write now, to be written later, by any thread. Must not outlive this policy's
  /// tokenizer. `shards`, an existing folder on the same disk, is where other ranks put their parts
  /// meanwhile (trainer.parallel.sharded_checkpoints); without it rank 0 gathers everything.
  [[nodiscard]] policy_snapshot snapshot(const std::filesystem::path& shards = {}) const;
  /// Whether several ranks write, so that a snapshot is to be given such a folder.
  [[nodiscard]] bool shards_checkpoints() const;

  /// Only the model, in Hugging Face's form. \throws user_error when the disk refuses
  void save_model(const std::filesystem::path& folder) const;

private:
  struct parts;
  explicit policy(std::unique_ptr<parts> p);
  friend void follow_rank(int, const std::string&, double,
                          const std::function<void(const settings&)>&);
  std::unique_ptr<parts> parts_;
};

} // namespace millrace::trainer
