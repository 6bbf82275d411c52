#pragma once

#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

namespace millrace::weightsync {

class ucx_reader;

/// Looks after readers between their pulls, once a second. Every UCX worker that may use TCP listens
/// on a port: strangers who connect to it are accepted at once, but their descriptors are closed only
/// when the worker is called.
class ucx_caretaker {
public:
  ucx_caretaker();
  ~ucx_caretaker();
  ucx_caretaker(const ucx_caretaker&) = delete;
  ucx_caretaker& operator=(const ucx_caretaker&) = delete;

  void add(ucx_reader* r);
  /// When this returns, `r` isn't being looked after any more.
  void remove(ucx_reader* r);

private:
  void run();

  std::mutex mutex_;
  std::condition_variable ended_;
  std::set<ucx_reader*> readers_;
  bool stop_ = false;
  std::thread thread_;
};

} // namespace millrace::weightsync
