#include "runtime/atomic_file.hpp"

#include "runtime/error.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <unistd.h>
#include <utility>

namespace millrace {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view what) {
  throw user_error(path.string() + ": " + std::string(what) + ": " + std::strerror(errno));
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

void sync(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    fail(path, "can't open it");
  // Some file systems can't sync a folder, and say so: nothing is lost that they could have kept.
  const bool failed = ::fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP;
  const int reason = errno;
  ::close(fd);
  errno = reason;
  if (failed)
    fail(path, "can't sync it");
}

void put_in_place(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    fail(to, "can't put it in place");
  sync(folder_of(to));
}

} // namespace

atomic_file::atomic_file(std::filesystem::path path) : path_(std::move(path)), partial_(path_) {
  partial_ += ".partial";
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0)
    fail(partial_, "can't create it");
}

atomic_file::~atomic_file() {
  if (fd_ < 0)
    return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

void atomic_file::write(std::span<const std::byte> bytes) {
  ensure(fd_ >= 0, "atomic_file written after its commit");
  while (!bytes.empty()) {
    const auto n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      fail(partial_, "can't write it");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void atomic_file::commit() {
  ensure(fd_ >= 0, "atomic_file committed twice");
  if (::fsync(fd_) != 0)
    fail(partial_, "can't sync it");
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) {
    const int reason = errno;
    ::unlink(partial_.c_str());
    errno = reason;
    fail(partial_, "can't write it");
  }
  put_in_place(partial_, path_);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  atomic_file file(path);
  file.write(content);
  file.commit();
}

void commit_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code failed;
  for (auto at = std::filesystem::recursive_directory_iterator(from, failed);
       !failed && at != std::filesystem::end(at); at.increment(failed))
    sync(at->path());
  if (failed)
    throw user_error(from.string() + ": can't read the folder: " + failed.message());
  sync(from);
  if (std::filesystem::exists(to, failed))
    throw user_error(to.string() + ": is already there");
  put_in_place(from, to);
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  if (in)
    text << in.rdbuf();
  if (!in || in.bad())
    fail(path, "can't read it");
  return std::move(text).str();
}

} // namespace millrace
