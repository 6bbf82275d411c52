#pragma once

// What the benchmarks measure with.

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

} // namespace millrace::bench
