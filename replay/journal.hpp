#pragma once

#include "replay/journal_file.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace millrace {

/// When the journal waits for the disk. Whatever the choice, the death of a process loses nothing;
/// it is about power failures.
enum class journal_sync : std::uint8_t {
  never,     ///< the system's choice: some seconds may be lost
  decisions, ///< at each hand-out and confirmation: groups that came in since may be lost
  always,    ///< at every record: nothing is lost
};
constexpr std::array<std::string_view, 3> names(journal_sync) {
  return {"never", "decisions", "always"};
}

struct journal_options {
  journal_sync sync = journal_sync::decisions;
  /// The file is rewritten as the state that it leads to once it is larger than this, and twice as
  /// large as it was then.
  std::uint64_t compact_above = std::uint64_t{64} << 20;
  /// Goes on from a journal that is damaged before its end, without what stands after the damage.
  bool accept_loss = false;
};

enum class record_kind : std::uint8_t {
  snapshot = 1, ///< the whole state; what came before it is void
  inserted,     ///< a group
  handed_out,   ///< a version and the ids of its batch's groups
  confirmed,    ///< a version
  taken_back,   ///< nothing: the batch that was out
  dropped,      ///< ids of groups
  resumed,      ///< a version
};

/// What opening a journal found.
struct journal_recovery {
  std::int64_t records = 0;
  std::uint64_t bytes = 0;
  std::uint64_t cut_bytes = 0; ///< of a record that was being written when the process died
  std::string text;            ///< one line for the log
};

/// An append-only file of records, each with a checksum. Whatever moment the writer dies at, what
/// was appended before is read back, and a record that was torn is cut off and told. Damage
/// anywhere else is never passed over: it is an error unless `accept_loss`.
///
/// Layout: "MRJNL001", then per record: marker (4 bytes), length of the payload (4), CRC-32C of all
/// that follows and of the length (4), kind (1), payload. Little-endian.
class journal {
public:
  using reader = std::function<void(record_kind, std::string_view payload)>;

  /// Reads all records in order, then stands ready to append.
  /// \throws user_error when the file is no journal, is damaged, or can't be read
  journal(std::unique_ptr<journal_file> file, journal_options options, const reader& each);

  [[nodiscard]] const journal_recovery& recovery() const { return recovery_; }

  /// Queues a record; write() puts it into the file.
  void add(record_kind kind, std::string_view payload);
  /// Writes what was added, all or nothing, and syncs as the options say.
  /// \throws user_error; what was added stays queued for the next call
  void write();
  /// Waits for the disk, whatever the options.
  void sync();

  [[nodiscard]] bool wants_compaction() const;
  /// Replaces all records by one snapshot. \throws user_error; the journal is then as it was.
  void compact(std::string_view snapshot);

  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::string name() const { return file_->name(); }

private:
  void recover(std::string_view content, const reader& each);
  void cut(std::uint64_t size);

  std::unique_ptr<journal_file> file_;
  journal_options options_;
  journal_recovery recovery_;
  std::string queued_;
  bool queued_decision_ = false;
  bool torn_ = false;      ///< a write failed: beyond size_ the file may hold a part of it
  std::uint64_t size_ = 0; ///< of what is whole
  std::uint64_t compacted_size_ = 0;
};

} // namespace millrace
