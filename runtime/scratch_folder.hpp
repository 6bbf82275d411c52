#pragma once

#include <filesystem>
#include <string>

namespace millrace {

/// A fresh folder under the system's temporary one (or another), removed with its owner. One whose
/// process was killed is removed by the next process that makes a folder of the same name there.
class scratch_folder {
public:
  /// `name` starts the folder's name. \throws user_error when it can't be made
  explicit scratch_folder(const std::string& name,
                          const std::filesystem::path& under = std::filesystem::temp_directory_path());
  ~scratch_folder();
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
  int owner_ = -1; ///< a locked file beside the folder: the lock ends with the process
};

} // namespace millrace
