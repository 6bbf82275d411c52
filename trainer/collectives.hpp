#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace millrace::trainer {

class rank_watch;

/// A rank of the group died, stopped, or could not be reached. The group is of no use any more: the
/// training that it did goes on from a checkpoint.
class rank_lost : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class reduction : std::uint8_t { sum, largest };

/// What a group of ranks does together. Every rank calls the same operations in the same order, with
/// tensors of the same shape; they are contiguous, and changed in place. A dead rank fails the others'
/// operations at once, a stopped one at the time-out. \throws rank_lost
class collectives {
public:
  /// An operation under way. Its tensor must be left alone until wait() returns.
  class pending {
  public:
    virtual ~pending() = default;
    virtual void wait() = 0; ///< \throws rank_lost
  };

  virtual ~collectives() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Every rank's tensor becomes their sum (or elementwise largest): the same bits everywhere.
  virtual std::unique_ptr<pending> start_all_reduce(at::Tensor t, reduction how) = 0;
  /// The root's tensor becomes the sum; the others' are undefined afterwards.
  virtual std::unique_ptr<pending> start_reduce(at::Tensor t, int root) = 0;
  virtual std::unique_ptr<pending> start_broadcast(at::Tensor t, int root) = 0;

  void all_reduce(at::Tensor& t, reduction how = reduction::sum);
  void broadcast(at::Tensor& t, int root);
  /// part [n] of every rank → whole [size·n], in rank order
  void all_gather(const at::Tensor& part, at::Tensor& whole);
  /// whole [size·n] summed over the ranks; part [n]: this rank's piece of it
  void reduce_scatter(const at::Tensor& whole, at::Tensor& part);
  void barrier();
  /// Sum of one number over the ranks.
  double sum(double x);
  double largest(double x);

  /// A rank is gone: what is under way on CUDA devices is broken off, and every later operation throws
  /// rank_lost. For any thread; throws nothing itself.
  virtual void abandon() = 0;
  /// To be called after the device was waited for, and before results are used: operations on CUDA
  /// devices are over early where they fail, and leave anything. \throws rank_lost when one has failed
  virtual void check() = 0;

  /// Seconds that this rank has waited for operations so far. About 0 with NCCL, where it is the device
  /// that waits.
  [[nodiscard]] double waited_s() const { return waited_s_; }
  void wait(pending& p);

private:
  double waited_s_ = 0;
};

/// Ranks 0 … n − 1 of a group within one process, for as many threads. When one of them is destroyed
/// while others wait for it, these throw rank_lost, as they do after `timeout`.
std::vector<std::unique_ptr<collectives>> local_collectives(
  int n, std::chrono::milliseconds timeout = std::chrono::seconds(60));

/// The meeting point of a group's processes: a TCP server in rank 0's, and clients in the others'.
class rendezvous {
public:
  /// Rank 0: listens on `port` (0: a free one). `local`: all ranks are on this machine.
  /// \throws user_error when the port is taken
  static std::unique_ptr<rendezvous> host(std::uint16_t port, std::chrono::milliseconds timeout,
                                          bool local = true);
  /// Others. Tried until the time-out. \throws rank_lost
  static std::unique_ptr<rendezvous> join(const std::string& host, std::uint16_t port,
                                          std::chrono::milliseconds timeout);
  virtual ~rendezvous() = default;

  [[nodiscard]] virtual std::uint16_t port() const = 0;
  /// Between the processes that call this with the same name: Gloo and, `with_cuda`, NCCL for tensors
  /// on CUDA devices. \throws rank_lost \throws user_error where there is no NCCL
  virtual std::unique_ptr<collectives> group(const std::string& name, int rank, int size,
                                             bool with_cuda = false) = 0;
  /// Calls `lost` when the process of one of the ranks 0 … size − 1 is gone. All of them call this.
  /// \throws rank_lost
  virtual std::unique_ptr<rank_watch> watch(int rank, int size, std::function<void()> lost) = 0;
  /// A rank other than 0 says that it is there. \throws rank_lost
  virtual void arrive() = 0;
  /// How many have said so.
  virtual std::int64_t arrived() = 0;
  /// A message by number, for all to read; the one before it must have been read by then, and is
  /// forgotten (number 0 never is). The reader waits as long as rank 0's process lives.
  /// \throws rank_lost when it is gone
  virtual void post(std::int64_t number, const std::string& message) = 0;
  virtual std::string read(std::int64_t number) = 0;
};

} // namespace millrace::trainer
