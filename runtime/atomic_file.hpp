#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace millrace {

/// A file that appears whole or not at all, over any crash: written aside (PATH.partial), synced,
/// renamed, and the folder synced. Without commit() what was written is removed.
/// All members throw user_error, naming the file and the system's reason (no space left, …).
class atomic_file {
public:
  explicit atomic_file(std::filesystem::path path);
  ~atomic_file();
  atomic_file(const atomic_file&) = delete;
  atomic_file& operator=(const atomic_file&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

private:
  std::filesystem::path path_;
  std::filesystem::path partial_;
  int fd_ = -1;
};

/// The whole content in one go.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Makes a folder that was written aside appear under its name: syncs every file and folder below
/// `from`, renames it to `to` (which must not exist), and syncs the parent.
void commit_folder(const std::filesystem::path& from, const std::filesystem::path& to);

/// The content of a file. \throws user_error
[[nodiscard]] std::string read_file(const std::filesystem::path& path);

} // namespace millrace
