#include "weightsync/ucx_caretaker.hpp"

#include "weightsync/quiet_thread.hpp"
#include "weightsync/ucx_reader.hpp"

#include <chrono>

namespace millrace::weightsync {

ucx_caretaker::ucx_caretaker() {
  thread_ = quiet_thread([this] { run(); });
}

ucx_caretaker::~ucx_caretaker() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void ucx_caretaker::add(ucx_reader* r) {
  std::lock_guard lock(mutex_);
  readers_.insert(r);
}

void ucx_caretaker::remove(ucx_reader* r) {
  std::lock_guard lock(mutex_);
  readers_.erase(r);
}

void ucx_caretaker::run() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, std::chrono::seconds(1), [this] { return stop_; }))
    for (auto* r : readers_)
      r->look_after();
}

} // namespace millrace::weightsync
