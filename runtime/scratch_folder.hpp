#pragma once

#include "runtime/error.hpp"

#include <cstdlib>
#include <filesystem>
#include <string>

namespace millrace {

/// A fresh folder under the system's temporary one, removed with its owner.
class scratch_folder {
public:
  /// `name` starts the folder's name. \throws user_error when it can't be made
  explicit scratch_folder(const std::string& name) {
    auto pattern = (std::filesystem::temp_directory_path() / (name + "-XXXXXX")).string();
    if (mkdtemp(pattern.data()) == nullptr)
      throw user_error("can't make a folder in "
                       + std::filesystem::temp_directory_path().string()
                       + "; set TMPDIR to one that can be written");
    path_ = pattern;
  }
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
};

} // namespace millrace
