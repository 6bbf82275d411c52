#pragma once

#include "replay/buffer.hpp"
#include "replay/journal.hpp"

#include <utility>

namespace millrace {

/// A replay buffer that survives its process: every change is in the journal before the caller is
/// told of it. After a crash the same file gives the same buffer back, with the batch that was out,
/// so nothing is lost and nothing is trained on twice.
///
/// Members are those of replay_buffer, with the same results. They throw user_error when the
/// journal can't be written; the call may then be repeated, and says what became of it (an insert:
/// already_known; take_back: false).
class durable_buffer {
public:
  /// \throws user_error when the journal can't be used (see journal)
  durable_buffer(buffer_options options, std::unique_ptr<journal_file> file,
                 journal_options journal = {});

  insert_result insert(scored_group group);
  hand_out_result hand_out(version from, std::span<const in_flight_rollout> in_flight = {});
  bool confirmed(version from);
  std::vector<std::int64_t> adopt(version from, std::span<const std::int64_t> groups);
  bool take_back();
  void drop(std::span<const std::int64_t> groups);
  void resume(version from);

  /// For looking in.
  [[nodiscard]] const replay_buffer& state() const { return buffer_; }
  [[nodiscard]] const journal_recovery& recovery() const { return journal_.recovery(); }
  [[nodiscard]] std::uint64_t journal_bytes() const { return journal_.size(); }
  [[nodiscard]] std::int64_t compactions() const { return compactions_; }
  /// Why the journal could not be compacted, once, or empty. Nothing is lost by it, it only grows.
  [[nodiscard]] std::string take_warning() { return std::exchange(warning_, {}); }
  /// Waits until all is on the disk.
  void sync() { journal_.sync(); }

private:
  void replay(record_kind kind, std::string_view payload);
  void add_version(record_kind kind, version v);
  void add_handed_out();
  void add_dropped(std::size_t known_before);
  void write();

  replay_buffer buffer_;
  journal journal_;
  std::string warning_;
  std::int64_t compactions_ = 0;
};

} // namespace millrace
