#pragma once

// What policy keeps behind its header. Its functions lie in policy.cpp (training), policy_ranks.cpp
// (tensors between ranks, and following rank 0) and policy_snapshot.cpp (checkpoints).

#include "trainer/policy.hpp"

#include "runtime/model/transformer.hpp"
#include "trainer/checkpoint_shards.hpp"
#include "trainer/collectives.hpp"
#include "trainer/parallel.hpp"
#include "trainer/supervised.hpp"
#include "trainer/tensor_memory.hpp"
#include "trainer/train_step.hpp"

#include <nlohmann/json.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace::trainer {

struct policy::parts {
  settings s;
  registries known;
  std::shared_ptr<rank_mesh> mesh; ///< null: one process
  model::transformer network;      ///< this rank's part of the model
  std::optional<model::transformer> whole; ///< rank 0, where tp is above 1: all of it, on the host
  std::unique_ptr<model::tokenizer> tokens;
  std::unique_ptr<supervised> warm_up;      ///< until the first step()
  std::unique_ptr<reinforcement> reinforce; ///< from the first step() on
  std::int64_t warm_up_steps = 0;
  version at{0};
  std::vector<std::string> remarks;
  shard_writer shard; ///< of ranks but 0
  host_tensors on_host; ///< the published parameters, where they aren't there
  std::optional<std::pair<version, std::int64_t>> on_host_of; ///< `at` and warm_up_steps then

  parts(const settings& given, const registries* extra, std::shared_ptr<rank_mesh> ranks,
        model::loaded_model loaded);

  // -- training ------------------------------------------------------------------------------------

  void enter() const; ///< this thread's tensor operations are the trainer's now
  void begin_warm_up();
  void begin_reinforcement();
  supervised_statistics do_warm_up(std::span<const demonstration> batch);
  step_statistics do_step(version from, std::span<const scored_group> groups,
                          const old_logit_supply& supply);

  [[nodiscard]] const model::transformer& published() const { return whole ? *whole : network; }
  std::vector<tensor_view> published_on_host();
  [[nodiscard]] adamw* optimizer() const {
    return reinforce ? &reinforce->optimizer() : warm_up ? &warm_up->optimizer() : nullptr;
  }

  // -- between ranks -------------------------------------------------------------------------------

  /// The whole model, or a rank's part, whose values come later; on its device.
  static model::transformer part_of(model::transformer& all, rank_mesh* mesh, const settings& s);
  /// Makes the other ranks do what this one is about to.
  void lead(const std::string& what, const std::string& content = {}) const;
  /// What rank 0 posts, done, until it is done with.
  void follow();

  /// From rank 0's whole tensor to every rank's part.
  void hand_out(const std::string& name, at::Tensor whole_value, at::Tensor own) const;
  /// From the parts of rank 0's replica to its whole tensor. Called on all ranks of that replica.
  void gather(const std::string& name, const at::Tensor& own, at::Tensor whole_value) const;
  [[nodiscard]] std::int64_t whole_size(const std::string& name, int dimension) const;
  void spread_model() const; ///< rank 0's values to all, which then know that they have come
  void collect_model();      ///< rank 0's whole model follows its replica

  // -- checkpoints ---------------------------------------------------------------------------------

  /// How the ranks write a checkpoint; nothing: rank 0 gathers and writes all of it.
  [[nodiscard]] std::optional<shard_plan> shards() const;
  [[nodiscard]] nlohmann::json state() const;
  void restore(const nlohmann::json& state);      ///< before the tensors are filled
  void restore_rest(const nlohmann::json& state); ///< after it

  /// By their names in checkpoints. The optimiser's state must be gathered.
  [[nodiscard]] std::vector<tensor_view> training_tensors() const;
  /// What this rank writes in its shard.
  [[nodiscard]] std::vector<tensor_view> own_tensors() const;
  /// Training tensors as they go into a checkpoint: whole ones, on rank 0. `memory` holds those that
  /// were put together from parts.
  std::vector<tensor_view> collected_tensors(std::vector<at::Tensor>& memory) const;
  /// After collected_tensors() were used, and after fill_tensors(): each rank has its part again, and
  /// knows that nothing was lost on the way. Called on all ranks.
  void keep_state() const;
  /// Rank 0 has `file`; every rank fills its training tensors.
  void fill_tensors(const std::function<const std::byte*(const tensor_view&)>& file) const;
};

/// What libtorch must be told before anything is computed: deterministic kernels only, where these are
/// wanted; and CUDA for the actors beside the trainer, as a backward pass before it would hide CUDA from
/// them. Once in each process that trains.
void prepare_process(const settings& s);

/// What the trainer's rank of this process computes on. \throws user_error
c10::Device trainer_device(const settings& s, const rank_mesh* mesh);

/// Starts the other ranks, unless they are there, and tells them what model it is.
std::shared_ptr<rank_mesh> with_ranks(const settings& s, std::shared_ptr<rank_mesh> mesh,
                                      const model::model_config& config);

} // namespace millrace::trainer
