#include "runtime/scratch_folder.hpp"

#include "runtime/error.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace millrace {

namespace fs = std::filesystem;

namespace {

constexpr const char* owner_suffix = ".owner";

/// Opens the file and locks it; -1 when somebody holds it, or it can't be had.
int locked(const fs::path& file, int flags) {
  const int fd = open(file.c_str(), O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

/// Folders of this name whose owners are dead. Those of other users can't be opened, and stay.
void remove_abandoned(const fs::path& under, const std::string& name) {
  std::error_code failed;
  for (auto i = fs::directory_iterator(under, failed); !failed && i != fs::directory_iterator();
       i.increment(failed)) {
    const auto file = i->path().filename().string();
    if (!file.starts_with(name + "-") || !file.ends_with(owner_suffix))
      continue;
    const int fd = locked(i->path(), O_NOFOLLOW);
    if (fd < 0)
      continue;
    std::error_code ignored;
    fs::remove_all(under / file.substr(0, file.size() - std::string_view(owner_suffix).size()), ignored);
    fs::remove(i->path(), ignored);
    close(fd);
  }
}

} // namespace

scratch_folder::scratch_folder(const std::string& name, const fs::path& under) {
  remove_abandoned(under, name);
  auto pattern = (under / (name + "-XXXXXX")).string();
  if (mkdtemp(pattern.data()) == nullptr) {
    const std::string why = std::strerror(errno);
    std::error_code failed;
    throw user_error("can't make a folder in " + under.string() + ": " + why
                     + (under == fs::temp_directory_path(failed)
                          ? "; set TMPDIR to one that can be written" : ""));
  }
  path_ = pattern;
  // It gets its name when it is locked, so that nobody finds it before.
  owner_ = locked(pattern + ".new", O_CREAT | O_EXCL | O_NOFOLLOW);
  std::error_code ignored;
  fs::rename(pattern + ".new", pattern + owner_suffix, ignored);
}

scratch_folder::~scratch_folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (owner_ >= 0) {
    fs::remove(path_.string() + owner_suffix, ignored);
    close(owner_);
  }
}

} // namespace millrace
