#pragma once

#include "runtime/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace millrace::weightsync {

using lease_id = std::uint64_t;

/// The right to read a version's buffer until a deadline, which renewals push back.
struct lease {
  lease_id id = 0; ///< 0: refused
  version number;  ///< that may be read, or when refused: the current one, to be asked for instead
  double deadline = 0; ///< seconds on the caller's clock
  explicit operator bool() const { return id != 0; }
};

struct held_lease {
  lease_id id = 0;
  std::string receiver;
  std::size_t slot = 0;
  version number;
  double granted_at = 0;
  double deadline = 0;
};

/// Who may write and who may read which of the publishing side's buffers ("slots"). Pure decisions:
/// no memory, no clock, no threads; `now` is in seconds and must not go back.
///
///   free ──begin──▶ filling ──commit──▶ current ──next commit──▶ retiring ──last lease ends──▶ free
///
/// Only the current version can be leased. A slot is handed out for writing only when no lease on it
/// lives: readers either release, or run into their deadline.
class publisher_machine {
public:
  publisher_machine(std::size_t slots, double lease_s);

  /// Asks for a slot to fill with `v`, newer than all before. None when readers hold them all:
  /// ask again at blocked_until().
  std::optional<std::size_t> begin(version v, double now);
  /// The slot is filled: its version is the current one.
  void commit(std::size_t slot, double now);
  /// The filling failed.
  void abandon(std::size_t slot);

  /// A receiver wants to read `v`; granted if that is the current version. Asking twice renews.
  lease acquire(const std::string& receiver, version v, double now);
  /// Progress was made; false when the lease has ended meanwhile.
  bool renew(lease_id id, double now);
  /// The receiver is done with it; ending an unknown lease is no error (it may have expired).
  bool release(lease_id id, double now);
  /// The receiver is gone: ends its leases and removes it from the acknowledgements.
  void forget(const std::string& receiver, double now);
  /// Ends leases that are past their deadline; returns them, for the log.
  std::vector<held_lease> tick(double now);

  /// The receiver samples with `v` now.
  void acknowledge(const std::string& receiver, version v);
  /// Its last acknowledged version, or no_version.
  [[nodiscard]] version acknowledged(const std::string& receiver) const;

  [[nodiscard]] version current() const { return current_; } ///< no_version before the first
  [[nodiscard]] std::optional<std::size_t> current_slot() const;
  [[nodiscard]] const std::map<lease_id, held_lease>& leases() const { return leases_; }
  /// When begin() may succeed at the latest: `now` when it would already.
  [[nodiscard]] double blocked_until(double now) const;
  [[nodiscard]] std::uint64_t expired_leases() const { return expired_; }

private:
  enum class slot_state : std::uint8_t { free, filling, current, retiring };
  struct slot_info {
    slot_state state = slot_state::free;
    version number = no_version;
  };

  void free_retired();
  [[nodiscard]] bool leased(std::size_t slot) const;

  std::vector<slot_info> slots_;
  double lease_s_;
  lease_id next_lease_ = 1;
  version current_ = no_version;
  version newest_begun_ = no_version;
  std::map<lease_id, held_lease> leases_;
  std::map<std::string, version> acknowledged_;
  std::uint64_t expired_ = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, lease& x) {
  return f(x.id, x.number, x.deadline);
}

} // namespace millrace::weightsync
