#pragma once

#include "weightsync/publisher_machine.hpp"
#include "weightsync/receiver_machine.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <vector>

namespace millrace::weightsync {

/// The real publisher and receiver machines over a fake transport, in simulated time, all from one
/// seed. Until `faults_until`, messages are lost, doubled and delayed, transfers are cut, slowed down
/// until their buffer is overwritten, corrupted, or completed twice, receivers die and come back, and
/// one joins late. The checks throw.
class sync_simulation {
public:
  explicit sync_simulation(std::uint64_t seed);

  /// Runs until `seconds`.
  void run(double seconds);
  /// From now on nothing fails any more.
  void stop_faults() { faults_ = false; }

  [[nodiscard]] version published() const { return publisher_.current(); }
  [[nodiscard]] version slowest_receiver() const;
  /// The longest that the trainer had to wait for a free slot.
  [[nodiscard]] double longest_block() const { return longest_block_; }

  std::int64_t swaps = 0, deaths = 0, cuts = 0, corruptions = 0, overwritten_reads = 0, lost = 0;

  static constexpr double lease_s = 8;
  static constexpr std::size_t fetches = 6;
  static constexpr std::size_t words = 4; ///< of each fetch; all carry their version's stamp

private:
  using buffer = std::vector<std::int32_t>;

  struct receiver {
    explicit receiver(const receiver_options& options) : machine(options) {}
    receiver_machine machine;
    buffer staging = buffer(fetches * words, -1);
    std::map<std::int32_t, std::pair<lease_id, std::size_t>> leases; // version → lease, slot
    std::map<std::uint64_t, bool> reads;  // ticket → still wanted
    bool alive = true;
    std::int64_t life = 0; // events of an earlier life don't reach the next one
    version installed = no_version;
  };

  struct event {
    double at = 0;
    std::uint64_t order = 0;
    std::function<void()> what;
    bool operator<(const event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  void later(double delay, std::function<void()> what);
  void message(std::function<void()> what); // over the lossy link
  void to_receiver(std::size_t r, std::function<void(receiver&)> what);
  bool chance(double p) { return faults_ && unit_(random_) < p; }
  double between(double lo, double hi) { return lo + (hi - lo) * unit_(random_); }

  void publish();
  void remind();
  void trouble(std::size_t r);
  void watch(std::size_t r);
  void act(std::size_t r, const receiver_machine::actions& actions);
  void ask_lease(std::size_t r, version v);
  void start_fetch(std::size_t r, const receiver_action& a);
  void copy_words(std::size_t r, const receiver_action& a, std::size_t slot, std::size_t word,
                  double step);
  void verify(std::size_t r, const receiver_action& a);
  void ready(std::size_t r, version v);

  std::mt19937_64 random_;
  std::uniform_real_distribution<double> unit_{0, 1};
  bool faults_ = true;
  double now_ = 0;
  std::uint64_t order_ = 0;
  std::priority_queue<event> events_;
  publisher_machine publisher_{2, lease_s};
  std::vector<buffer> slots_{2, buffer(fetches * words, -1)};
  std::vector<std::unique_ptr<receiver>> receivers_;
  version next_{0};
  double blocked_since_ = -1;
  double longest_block_ = 0;
};

} // namespace millrace::weightsync
