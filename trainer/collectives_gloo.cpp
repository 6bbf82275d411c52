// c10d's Gloo, as the wheel's libtorch has it.

#include "trainer/c10d_backends.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <csignal>

namespace millrace::trainer {

namespace {

/// Gloo writes to sockets whose other end may be gone: that is an error of the operation, and must not
/// end the process.
void survive_broken_pipes() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
    std::signal(SIGPIPE, SIG_IGN);
}

} // namespace

c10::intrusive_ptr<c10d::Backend> gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size,
                                               std::chrono::milliseconds timeout, bool local) {
  survive_broken_pipes();
  auto o = c10d::ProcessGroupGloo::Options::create(timeout);
  // A machine's own name may not be known to its resolver.
  o->devices.push_back(local ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                             : c10d::ProcessGroupGloo::createDefaultDevice());
  o->threads = 1; // operations of one group run in the order in which they were started
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, o);
}

} // namespace millrace::trainer
