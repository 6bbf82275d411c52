#pragma once

#include "actors/trainer_actor.hpp"
#include "runtime/config/settings.hpp"
#include "trainer/checkpoint.hpp"
#include "trainer/checkpoint_writer.hpp"
#include "trainer/policy.hpp"
#include "weightsync/publisher.hpp"

#include <functional>
#include <memory>

namespace millrace {

/// Looks on at each training step, on the trainer's thread: for tests and tools.
struct step_observer {
  std::function<void(const train_batch&, const trainer::policy&)> before;
  std::function<void(const train_batch&, const trainer::step_statistics&)> after;
};

/// The real work behind the trainer: a policy, its publisher and its checkpoints.
class policy_backend : public training_backend {
public:
  /// `now`: seconds on the clock that leases are counted on.
  policy_backend(std::shared_ptr<trainer::policy> policy,
                 std::shared_ptr<weightsync::publisher> publisher,
                 std::shared_ptr<trainer::checkpoint_store> checkpoints,
                 std::function<double()> now);

  /// Ends the checkpoint that is being written.
  ~policy_backend() override;

  weights_published publish_current() override;
  train_result train(const train_batch& batch) override;
  /// Copies what is to be saved, and writes it while training goes on. What a write before this one
  /// failed with is thrown here.
  void save(const std::string& stream) override;
  void finish_saving() override { writer_.wait(); }
  /// Publishes each version in full precision as well, by `exact`, for an old-logit node: before the
  /// others, so that it has a head start over them. When that node still reads the version before the
  /// last, its slot is waited for, up to `wait_s`; then this version is left out.
  void also_publish(std::shared_ptr<weightsync::publisher> exact, double wait_s);
  /// Whether the generators' weights may be published from a GPU's memory, where the transport can:
  /// all who fetch them must then do so into a GPU's. Off at first.
  void publish_from_device(bool allowed) { from_device_ = allowed; }
  void observe(std::shared_ptr<const step_observer> by) { observer_ = std::move(by); }

private:
  std::string publish(std::map<std::string, double>& values);
  std::string publish_exact(std::map<std::string, double>& values);
  std::string publish_by(weightsync::publisher& by, const std::vector<tensor_view>& views,
                         double wait_s, weightsync::publish_report& report);

  std::shared_ptr<trainer::policy> policy_;
  std::shared_ptr<weightsync::publisher> publisher_, exact_; ///< exact_: or empty
  double exact_wait_s_ = 0;
  bool from_device_ = false;
  std::shared_ptr<trainer::checkpoint_store> checkpoints_;
  std::function<double()> now_;
  std::shared_ptr<const step_observer> observer_; ///< or empty
  double reward_sum_ = 0; ///< mean rewards of the batches since the last checkpoint
  std::int64_t batches_ = 0;
  trainer::checkpoint_writer writer_; // last: it is to end before what it writes
};

} // namespace millrace
