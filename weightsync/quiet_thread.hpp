#pragma once

#include <csignal>
#include <pthread.h>
#include <thread>
#include <utility>

namespace millrace::weightsync {

/// A thread that takes no signals: they are for the threads that wait for them.
template <class Work>
std::thread quiet_thread(Work&& work) {
  struct mask {
    sigset_t before{};
    mask() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~mask() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  } const inherited;
  return std::thread(std::forward<Work>(work));
}

} // namespace millrace::weightsync
