#pragma once

#include <cerrno>
#include <csignal>
#include <ctime>
#include <pthread.h>

namespace millrace {

/// A write to a process or connection that is gone must not end this process: while this lives there
/// is no SIGPIPE for the thread that made it.
class without_sigpipe {
public:
  without_sigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~without_sigpipe() {
    const timespec none{};
    if (!was_pending_)
      while (sigtimedwait(&pipe_, nullptr, &none) == -1 && errno == EINTR) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  without_sigpipe(const without_sigpipe&) = delete;
  without_sigpipe& operator=(const without_sigpipe&) = delete;

private:
  sigset_t pipe_{}, before_{};
  bool was_pending_ = false;
};

} // namespace millrace
