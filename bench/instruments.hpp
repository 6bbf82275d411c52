#pragma once

// What the benchmarks measure with.

#include <filesystem>
#include <functional>
#include <string>

namespace millrace::bench {

/// Says on standard error what is being measured.
void note(const std::string& text);

/// Seconds that `work` takes.
double seconds(const std::function<void()>& work);

/// The calling thread, and those that it starts, run on the first `cores` cores only.
void use_cores(long cores);

/// The most memory that the process held since this was made, above what it held then.
class peak_memory {
public:
  peak_memory();
  [[nodiscard]] double bytes() const;

private:
  double before_;
};

class temporary_folder {
public:
  temporary_folder();
  ~temporary_folder();
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
};

} // namespace millrace::bench
