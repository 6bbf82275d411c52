#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace millrace {

/// What a journal needs of a disk. All members throw user_error, naming the file and the system's
/// reason.
class journal_file {
public:
  virtual ~journal_file() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string read() = 0;
  /// When it throws, a part may have been written.
  virtual void append(std::string_view bytes) = 0;
  virtual void truncate(std::uint64_t size) = 0;
  /// Returns when all that was appended is on the disk.
  virtual void sync() = 0;
  /// The file has this content, on the disk, or still the old one.
  virtual void replace(std::string_view content) = 0;
};

/// A file on disk, made where there is none. Only one process can have it open.
[[nodiscard]] std::unique_ptr<journal_file> open_journal_file(const std::filesystem::path& path);

/// In memory, for tests and simulations: keeps what was synced apart from what was only written,
/// and runs full when told to.
class memory_journal_file final : public journal_file {
public:
  /// Shared with the test, and outlives the journal as a disk outlives a process.
  struct disk {
    std::string content;
    std::uint64_t synced = 0; ///< bytes that a power failure leaves for sure
    std::uint64_t room = UINT64_MAX; ///< bytes that the content may reach
    std::int64_t syncs = 0;
  };
  explicit memory_journal_file(std::shared_ptr<disk> d) : disk_(std::move(d)) {}

  [[nodiscard]] std::string name() const override { return "journal in memory"; }
  [[nodiscard]] std::string read() override { return disk_->content; }
  void append(std::string_view bytes) override;
  void truncate(std::uint64_t size) override;
  void sync() override;
  void replace(std::string_view content) override;

private:
  std::shared_ptr<disk> disk_;
};

} // namespace millrace
