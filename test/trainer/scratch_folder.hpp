#pragma once

#include <unistd.h>

#include <filesystem>

namespace millrace::toy {

/// A folder that is gone when the test is over; in memory where there is such a place, because
/// checkpoints flush everything to disk.
struct scratch_folder {
  std::filesystem::path path;

  scratch_folder() {
    std::filesystem::path memory = "/dev/shm";
    auto base = ::access(memory.c_str(), W_OK) == 0 ? memory
                                                    : std::filesystem::temp_directory_path();
    auto pattern = (base / "millrace-trainer-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~scratch_folder() { std::filesystem::remove_all(path); }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
};

} // namespace millrace::toy
