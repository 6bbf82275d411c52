#pragma once

#include "runtime/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace millrace::weightsync {

/// What the receiver's shell has to do. `number` is the version that it is about.
struct receiver_action {
  enum class kind : std::uint8_t {
    ask_lease,     ///< ask the publisher for a lease on `number`
    start_fetch,   ///< start reading fetch `fetch`
    verify,        ///< prove the checksums of fetch `fetch`, then unpack it
    cancel,        ///< give up all reads that run
    release_lease, ///< tell the publisher
    ready,         ///< all of it is proven: the generator may swap it in
    acknowledge,   ///< the generator samples with it: tell the controller
    give_up        ///< this attempt failed for `reason`; the staging holds nothing usable
  };
  kind what;
  version number;
  std::size_t fetch = 0;
  std::uint64_t ticket = 0; ///< of start_fetch and verify: one for each read, ever
  std::string reason;
};

struct receiver_options {
  std::size_t window = 4;       ///< reads in flight at most
  std::int32_t max_attempts = 3; ///< of one fetch
  double lease_timeout_s = 5;   ///< for the answer to ask_lease
  double pull_timeout_s = 30;   ///< from the lease to ready
  double retry_after_s = 0.5;   ///< after give_up, before the next attempt
};

/// The receiver's side of a sync, as decisions only: events in, actions out; no I/O, no clock, no
/// threads. `now` in seconds. Reads are known by their tickets: an event whose ticket is not open any
/// more (of an earlier attempt, or a duplicate) is ignored.
///
///   idle ──notice──▶ leasing ──granted──▶ pulling ──all verified──▶ ready ──installed──▶ idle
///                      │ ▲                   │ time-out, too many attempts, peer lost
///                      └─┴───── backoff ◀────┘   (then the newest version, whichever that is)
class receiver_machine {
public:
  enum class state : std::uint8_t { idle, leasing, pulling, ready, backoff };
  using actions = std::vector<receiver_action>;

  explicit receiver_machine(receiver_options options) : options_(options) {}

  /// Version `v` was published. While another one is being pulled it is remembered; the newest one
  /// wins.
  actions notice(version v, double now);
  /// The lease on `v` was granted; its plan has `fetches` reads.
  actions lease_granted(version v, std::size_t fetches, double now);
  /// It was refused: `current` is what the publisher has now.
  actions lease_refused(version v, version current, double now);
  /// All bytes of the read have arrived.
  actions fetched(std::uint64_t ticket, double now);
  /// They have not.
  actions fetch_failed(std::uint64_t ticket, const std::string& error, double now);
  /// The checksums of what was read were compared.
  actions verified(std::uint64_t ticket, bool intact, const std::string& where, double now);
  /// No way to get this version from where it is being pulled (the owner is lost).
  actions lost(version v, const std::string& error, double now);
  /// The generator swapped it in.
  actions installed(version v, double now);
  /// Time passes; call at wake_at() at the latest.
  actions tick(double now);

  [[nodiscard]] state phase() const { return state_; }
  [[nodiscard]] version pulling() const { return target_; } ///< or ready; no_version when idle
  [[nodiscard]] version installed_version() const { return installed_; }
  [[nodiscard]] version newest() const { return newest_; } ///< ever noticed
  /// When tick() is due, or infinity.
  [[nodiscard]] double wake_at() const;
  [[nodiscard]] std::int64_t retries() const { return retries_; }

private:
  enum class fetch_state : std::uint8_t { waiting, reading, verifying, done };
  struct fetch_info {
    fetch_state state = fetch_state::waiting;
    std::int32_t attempts = 0;
    std::uint64_t ticket = 0;
  };

  [[nodiscard]] std::optional<std::size_t> find(std::uint64_t ticket, fetch_state expected) const;
  void ask(version v, double now, actions& out);
  void fill_window(actions& out);
  void again(std::size_t fetch, const std::string& error, double now, actions& out);
  void fail(const std::string& reason, double now, actions& out);

  receiver_options options_;
  state state_ = state::idle;
  version target_ = no_version;
  version newest_ = no_version;
  version installed_ = no_version;
  std::vector<fetch_info> fetches_;
  std::size_t done_ = 0;
  std::uint64_t next_ticket_ = 1;
  std::map<std::uint64_t, std::size_t> open_; // tickets of reads in flight or being verified
  std::size_t next_ = 0; // no fetch before this one is waiting
  double deadline_ = 0;  // of the state that we are in
  std::int64_t retries_ = 0;
};

} // namespace millrace::weightsync
