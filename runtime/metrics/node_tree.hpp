#pragma once

#include "runtime/metrics/board.hpp"
#include "runtime/natural_order.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace {

/// The actors of all nodes: those of this process as they are now, those of others as they answered
/// last. Reading never waits for a node; one that does not answer stays, and says so. Thread-safe.
class node_tree {
public:
  explicit node_tree(std::shared_ptr<snapshot_board> local) : local_(std::move(local)) {}

  /// A node that will be asked. Until it answers it shows as one actor, its process.
  void expect(const std::string& node, double now);
  /// A node's answer.
  void update(const std::string& node, std::vector<actor_snapshot> actors, double now);
  /// It left, and will not come back.
  void forget(const std::string& node);

  /// Ages in the answers of other nodes go on from when they came. After `late_s` without an answer
  /// the node's process shows "no answer".
  [[nodiscard]] std::vector<actor_snapshot> all(double now) const;
  /// The most memory, in bytes, that the process of each other node has told of, those that were
  /// forgotten included.
  [[nodiscard]] std::map<std::string, std::int64_t> peak_memory() const;
  [[nodiscard]] const std::shared_ptr<snapshot_board>& local() const { return local_; }

  static constexpr double late_s = 5;

private:
  struct peer {
    double at = 0; ///< of its last answer, or since when it is awaited
    std::vector<actor_snapshot> actors;
  };

  std::shared_ptr<snapshot_board> local_;
  mutable std::mutex mutex_;
  std::map<std::string, peer, naturally_before> peers_;
  std::map<std::string, std::int64_t> peaks_; ///< by node
};

} // namespace millrace
