#pragma once

#include "runtime/config/settings.hpp"
#include "runtime/messages.hpp"
#include "trainer/demonstration.hpp"

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace millrace::model {
struct tensor_group;
}

namespace millrace::trainer {

class collectives;
class rank_watch;
class rendezvous;

/// dp × tp ranks: neighbours share a replica (tensor parallel), replicas share a batch.
struct rank_grid {
  int dp = 1, tp = 1;
  [[nodiscard]] int ranks() const { return dp * tp; }
  [[nodiscard]] int data_index(int rank) const { return rank / tp; }
  [[nodiscard]] int tensor_index(int rank) const { return rank % tp; }
};

/// A process of its own for each rank but 0, on this machine.
class rank_processes {
public:
  /// Runs `command… --rank K --store HOST:PORT --timeout S --parent ID` for K = 1 … count.
  /// \throws user_error
  rank_processes(const std::vector<std::string>& command, int count, const std::string& endpoint,
                 double timeout_s);
  /// Gives them a moment to end by themselves.
  ~rank_processes();
  rank_processes(const rank_processes&) = delete;
  rank_processes& operator=(const rank_processes&) = delete;

  /// Says which rank has ended first, and how; empty: none. For any thread.
  [[nodiscard]] std::string ended();
  [[nodiscard]] const std::vector<int>& process_ids() const { return ids_; }

private:
  std::mutex guard_;
  std::vector<int> ids_; ///< 0: it has ended, and was waited for
  std::string ended_;
};

/// The trainer's ranks as one of them sees them. Rank 0 leads: it posts what is to be done, and all
/// do it; the others follow, in follow_rank().
class rank_mesh {
public:
  /// As rank 0: waits for the others at `meeting`, where `processes`, if any, try to come. `on_cuda`:
  /// each rank computes on a CUDA device, and NCCL carries what lies there.
  static std::shared_ptr<rank_mesh> lead(rank_grid grid, std::unique_ptr<rendezvous> meeting,
                                         std::unique_ptr<rank_processes> processes,
                                         bool on_cuda = false);
  /// As another one; the grid is rank 0's.
  static std::shared_ptr<rank_mesh> join(int rank, std::unique_ptr<rendezvous> meeting);
  ~rank_mesh();

  const rank_grid grid;
  const int rank;
  [[nodiscard]] int data_index() const { return grid.data_index(rank); }
  [[nodiscard]] int tensor_index() const { return grid.tensor_index(rank); }

  collectives& world() { return *world_; }   ///< all ranks
  collectives& data() { return *data_; }     ///< those with the same part of the model
  collectives& tensor() { return *tensor_; } ///< those that share a replica
  /// Null where tp is 1. `sequence`: trainer.parallel.sequence.
  [[nodiscard]] std::shared_ptr<const model::tensor_group> tensor_group(bool sequence);
  /// Seconds spent waiting for other ranks so far.
  [[nodiscard]] double waited_s() const;

  /// Rank 0: makes the others do `what` with `content`. \throws rank_lost
  void post(const std::string& what, const std::string& content);
  struct order {
    std::string what, content;
  };
  /// Others: the next order; all that was under way on the device is done when it is "end".
  /// \throws rank_lost
  order next();

  /// Once what was begun is done on this rank's device: whether it is right, and done on all of them.
  /// Every rank calls it. \throws rank_lost
  void agree_on_results();

  [[nodiscard]] rank_processes* processes() { return processes_.get(); }

private:
  void read_by_all(const std::string& what);
  rank_mesh(rank_grid g, int rank, std::unique_ptr<rendezvous> meeting,
            std::unique_ptr<rank_processes> processes, bool on_cuda);

  std::unique_ptr<rank_processes> processes_;
  std::unique_ptr<rendezvous> meeting_;
  std::unique_ptr<collectives> world_, data_, tensor_;
  std::unique_ptr<rank_watch> watch_; ///< where devices would wait for the dead
  c10::Device device_;
  std::int64_t posted_ = 0;
};

/// What starts another rank: this program's command `trainer-rank`, unless set otherwise.
std::vector<std::string> default_rank_command();

/// The ranks of trainer.parallel with this process as rank 0; null where there is only one. Waits
/// until all are there. \throws user_error, rank_lost
std::shared_ptr<rank_mesh> start_ranks(const settings& s,
                                       const std::vector<std::string>& command
                                       = default_rank_command());

/// A whole process's work as rank `rank`: connects to rank 0 at `endpoint` (HOST:PORT), and does what
/// it posts until it is done with. `prepare` is called with rank 0's settings first, to load plugins.
/// \throws rank_lost when rank 0 or another one is gone
void follow_rank(int rank, const std::string& endpoint, double timeout_s = 60,
                 const std::function<void(const settings&)>& prepare = {});

// -- what is sent ------------------------------------------------------------------------------------

/// A training step's batch.
struct step_order {
  std::vector<scored_group> groups;
  old_logit_supply supply;
};
std::string to_bytes(std::span<const scored_group> groups, const old_logit_supply& supply = {});
step_order step_from_bytes(const std::string& bytes);
std::string to_bytes(std::span<const demonstration> batch);
std::vector<demonstration> demonstrations_from_bytes(const std::string& bytes);

} // namespace millrace::trainer
