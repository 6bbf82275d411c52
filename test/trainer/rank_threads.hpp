#pragma once

// Ranks as threads of this process.

#include <ATen/Parallel.h>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace millrace::toy {

/// work(rank) on a thread for each of n ranks.
inline void on_threads(int n, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      at::set_num_threads(1);
      try {
        work(r);
      } catch (...) {
        errors[static_cast<std::size_t>(r)] = std::current_exception();
      }
    });
  for (auto& t : threads)
    t.join();
  for (auto& e : errors)
    if (e)
      std::rethrow_exception(e);
}

} // namespace millrace::toy
