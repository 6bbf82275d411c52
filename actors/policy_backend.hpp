#pragma once

#include "actors/trainer_actor.hpp"
#include "runtime/config/settings.hpp"
#include "trainer/checkpoint.hpp"
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

  weights_published publish_current() override;
  train_result train(const train_batch& batch) override;
  void save(const std::string& stream) override;
  void observe(std::shared_ptr<const step_observer> by) { observer_ = std::move(by); }

private:
  std::string publish(std::map<std::string, double>& values);

  std::shared_ptr<trainer::policy> policy_;
  std::shared_ptr<weightsync::publisher> publisher_;
  std::shared_ptr<trainer::checkpoint_store> checkpoints_;
  std::function<double()> now_;
  std::shared_ptr<const step_observer> observer_; ///< or empty
};

} // namespace millrace
