#include "weightsync/nccl_domain.hpp"

#include "runtime/error.hpp"
#include "weightsync/stopwatch.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

namespace millrace::weightsync {

namespace {

void check(ncclResult_t result, const std::string& what) {
  if (result != ncclSuccess && result != ncclInProgress)
    throw user_error("weight_sync: NCCL: " + what + ": " + ncclGetErrorString(result));
}

void check(cudaError_t error, const std::string& what) {
  if (error != cudaSuccess)
    throw user_error("weight_sync: NCCL: " + what + ": " + cudaGetErrorString(error));
}

} // namespace

struct nccl_domain::handles {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;
  bool broken = false;

  ~handles() {
    if (comm != nullptr)
      broken ? ncclCommAbort(comm) : ncclCommDestroy(comm);
    if (done != nullptr)
      cudaEventDestroy(done);
    if (stream != nullptr)
      cudaStreamDestroy(stream);
  }
};

auto nccl_domain::make_ticket() -> ticket {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "making a ticket");
  ticket t;
  static_assert(sizeof(id) == sizeof(t));
  std::memcpy(t.data(), &id, sizeof(id));
  return t;
}

nccl_domain::nccl_domain(const ticket& t, int rank, int ranks, double timeout_s)
  : handles_(std::make_unique<handles>()), rank_(rank) {
  check(cudaStreamCreateWithFlags(&handles_->stream, cudaStreamNonBlocking), "a stream");
  check(cudaEventCreateWithFlags(&handles_->done, cudaEventDisableTiming), "an event");
  ncclUniqueId id;
  std::memcpy(&id, t.data(), sizeof(id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0; // every wait here has a deadline
  check(ncclCommInitRankConfig(&handles_->comm, ranks, id, rank, &config), "joining");
  wait(timeout_s, "joining the domain");
}

nccl_domain::~nccl_domain() = default;

// Waits until NCCL has done what it was told, and the stream with it.
void nccl_domain::wait(double timeout_s, const char* what) {
  stopwatch waited;
  bool recorded = false;
  for (;;) {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(handles_->comm, &state), what);
    if (state != ncclSuccess && state != ncclInProgress) {
      handles_->broken = true;
      check(state, what);
    }
    if (state == ncclSuccess && !recorded) {
      check(cudaEventRecord(handles_->done, handles_->stream), what);
      recorded = true;
    }
    if (recorded) {
      auto event = cudaEventQuery(handles_->done);
      if (event == cudaSuccess)
        return;
      if (event != cudaErrorNotReady)
        check(event, what);
    }
    if (waited.seconds() > timeout_s) {
      handles_->broken = true;
      throw user_error(std::string("weight_sync: NCCL: ") + what + " took more than "
                       + std::to_string(timeout_s) + " s: a rank is lost or late");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void nccl_domain::broadcast(std::span<std::byte> memory, int root, double timeout_s) {
  ensure(!handles_->broken, "a broadcast in a domain that was lost");
  check(ncclBroadcast(memory.data(), memory.data(), memory.size(), ncclUint8, root,
                      handles_->comm, handles_->stream),
        "a broadcast");
  wait(timeout_s, "a broadcast of weights");
}

} // namespace millrace::weightsync
