// c10d's Gloo, as the wheel's libtorch has it.

#include "trainer/c10d_backends.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <csignal>
#include <cstdlib>

namespace millrace::trainer {

namespace {

/// libtorch 2.11 records every operation in a map for the whole process, which it changes before it
/// takes the lock (FlightRecorderDetail.hpp, all_pg_status_): two groups whose first operations meet
/// can end the process. It reads this variable at the first operation; set here, before main, nothing
/// reads the environment meanwhile. A value that the user gave stands.
const bool flight_recorder_off = ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0) == 0;

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
