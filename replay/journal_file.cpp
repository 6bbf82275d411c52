#include "replay/journal_file.hpp"

#include "runtime/atomic_file.hpp"
#include "runtime/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace millrace {

namespace {

class posix_journal_file final : public journal_file {
public:
  explicit posix_journal_file(std::filesystem::path path) : path_(std::move(path)) { open(); }
  ~posix_journal_file() override {
    if (fd_ >= 0)
      ::close(fd_);
  }
  posix_journal_file(const posix_journal_file&) = delete;
  posix_journal_file& operator=(const posix_journal_file&) = delete;

  [[nodiscard]] std::string name() const override { return path_.string(); }
  [[nodiscard]] std::string read() override { return read_file(path_); }

  void append(std::string_view bytes) override {
    while (!bytes.empty()) {
      const auto n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR)
        continue;
      if (n <= 0)
        fail("can't be written");
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
  }

  void truncate(std::uint64_t size) override {
    if (::ftruncate(fd_, static_cast<off_t>(size)) != 0)
      fail("can't be cut to " + std::to_string(size) + " bytes");
  }

  void sync() override {
    if (::fdatasync(fd_) != 0)
      fail("can't be written to the disk");
  }

  void replace(std::string_view content) override {
    write_file_atomically(path_, content);
    // The old file has no name any more: nothing may be written to it, even if opening fails.
    ::close(std::exchange(fd_, -1));
    open();
  }

private:
  void open() {
    const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
      fail("can't be opened");
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      ::close(fd);
      throw user_error(path_.string() + ": is in use by another run; end that one, or choose "
                       "another run directory");
    }
    fd_ = fd;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw user_error(path_.string() + ": " + what + ": " + std::strerror(errno));
  }

  std::filesystem::path path_;
  int fd_ = -1;
};

} // namespace

std::unique_ptr<journal_file> open_journal_file(const std::filesystem::path& path) {
  return std::make_unique<posix_journal_file>(path);
}

void memory_journal_file::append(std::string_view bytes) {
  const auto free = disk_->room - std::min<std::uint64_t>(disk_->room, disk_->content.size());
  disk_->content += bytes.substr(0, free);
  if (free < bytes.size())
    throw user_error(name() + ": can't be written: no space left");
}

void memory_journal_file::truncate(std::uint64_t size) {
  disk_->content.resize(size);
  disk_->synced = std::min(disk_->synced, size);
}

void memory_journal_file::sync() {
  disk_->synced = disk_->content.size();
  ++disk_->syncs;
}

void memory_journal_file::replace(std::string_view content) {
  if (content.size() > disk_->room)
    throw user_error(name() + ": can't be written: no space left");
  disk_->content = content;
  sync();
}

} // namespace millrace
