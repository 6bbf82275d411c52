#pragma once

#include "weightsync/remote_region.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::weightsync {

/// Memory that a transport gave out and registered: readable from elsewhere as long as this lives.
class exposed_memory {
public:
  virtual ~exposed_memory() = default;
  [[nodiscard]] virtual std::span<std::byte> memory() const = 0;
  [[nodiscard]] virtual const remote_region& region() const = 0;
};

/// Read `to.size()` bytes that lie `offset` bytes into a region.
struct read_request {
  const remote_region* from = nullptr; ///< must live until the read has completed
  std::uint64_t offset = 0;
  std::span<std::byte> to;
  memory_kind memory = memory_kind::host; ///< of `to`
};

/// The end of a read.
struct completion {
  std::uint64_t tag = 0;
  std::string error; ///< empty: all bytes are there; else what happened and with which peer
  bool peer_lost = false; ///< the error is of the peer, not of these bytes: don't ask it again
};

/// Reads from other peers' regions on behalf of one thread. Not thread-safe: one for each thread.
/// Errors of a peer are completions, never exceptions.
class reader {
public:
  /// Ends like cancel(): no byte is written to any target afterwards.
  virtual ~reader() = default;

  /// Registers memory that will be read into again and again. Optional; it makes reads faster.
  virtual void prepare(std::span<std::byte> memory, memory_kind kind);
  /// Starts a read; its completion will carry `tag`.
  virtual void post(std::uint64_t tag, const read_request& request) = 0;
  /// The reads that have ended since; waits for the first one, but not longer than `wait_s`.
  virtual std::vector<completion> poll(double wait_s) = 0;
  /// Gives up all reads that have not completed: they never will, and when this returns nothing is
  /// written to their targets any more.
  virtual void cancel() = 0;
};

/// A way to read memory of other trainer ranks, in this process or elsewhere. Thread-safe.
class transport {
public:
  virtual ~transport() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Gives out `bytes` of registered memory, zeroed. Throws user_error where there is none.
  virtual std::unique_ptr<exposed_memory> expose(std::size_t bytes, memory_kind kind) = 0;
  virtual std::unique_ptr<reader> make_reader() = 0;
  /// Whether every reader of it reaches such memory when it is exposed.
  [[nodiscard]] virtual bool exposes(memory_kind kind) const { return kind == memory_kind::host; }
  /// Whether its readers write into such memory; what is pulled there goes by host memory otherwise.
  [[nodiscard]] virtual bool reads_into(memory_kind kind) const {
    return kind == memory_kind::host;
  }
};

} // namespace millrace::weightsync
