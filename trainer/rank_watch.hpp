#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace c10d {
class Backend;
class Work;
} // namespace c10d

namespace millrace::trainer {

/// Notices that another rank's process is gone, whatever this one is doing: a device that waits for a
/// dead rank tells nobody. Rank 0 waits for a word from each other rank, and these for one from rank 0,
/// which comes when the watch ends in good order. A connection that breaks instead is a loss, of which
/// rank 0 then tells all the others.
class rank_watch {
public:
  /// `over`: Gloo, for nothing else. `lost` is called once, on a thread of the watch, and must not
  /// destroy it.
  rank_watch(c10::intrusive_ptr<c10d::Backend> over, int rank, int size,
             std::function<void()> lost);
  ~rank_watch();
  rank_watch(const rank_watch&) = delete;
  rank_watch& operator=(const rank_watch&) = delete;

private:
  struct peer {
    int rank;
    at::Tensor word;
    c10::intrusive_ptr<c10d::Work> arrival;
    std::thread listener;
  };
  void listen(const peer& p);
  void say(std::int64_t word);

  c10::intrusive_ptr<c10d::Backend> over_;
  int rank_;
  std::function<void()> lost_;
  std::atomic<bool> ending_ = false, told_ = false;
  std::vector<peer> peers_;
};

} // namespace millrace::trainer
