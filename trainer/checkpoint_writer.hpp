#pragma once

#include "trainer/checkpoint.hpp"

#include <condition_variable>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace millrace::trainer {

/// Writes checkpoints on a thread of its own, one at a time, while training goes on. What is written
/// must not change meanwhile: a copy (policy_snapshot).
class checkpoint_writer {
public:
  /// The store must outlive this, and is this one's alone until then.
  explicit checkpoint_writer(checkpoint_store& store);
  /// Ends the write under way.
  ~checkpoint_writer();
  checkpoint_writer(const checkpoint_writer&) = delete;
  checkpoint_writer& operator=(const checkpoint_writer&) = delete;

  struct job {
    version at;
    std::function<void(const std::filesystem::path&)> write; ///< as for checkpoint_store::save()
    std::map<std::string, std::string> state;
    std::optional<double> score;
  };

  /// Waits for the write before, so that no more than one copy is ever held.
  /// \throws whatever that one threw
  void submit(job what);
  /// Until all is on disk. \throws whatever a write threw since the last call
  void wait();

  /// Seconds that the last finished write took.
  [[nodiscard]] double last_write_s() const;

private:
  void work();
  void rethrow(std::unique_lock<std::mutex>& lock);

  checkpoint_store& store_;
  mutable std::mutex guard_;
  std::condition_variable changed_;
  std::optional<job> job_; ///< waiting or under way
  std::exception_ptr failed_;
  double last_write_s_ = 0;
  bool ending_ = false;
  std::thread thread_; // last: it uses all of the above
};

} // namespace millrace::trainer
