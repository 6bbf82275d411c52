#pragma once

#include "weightsync/nccl_domain.hpp"
#include "weightsync/transport.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace millrace::weightsync {

/// Weights to many GPUs of one NCCL domain at once: the publisher's region is broadcast into a copy
/// at every rank, and pullers read from their own copy, with the same checksums as ever.
///
/// For each version all ranks call deliver() with the manifest, the publisher too; then each
/// receiver pulls.
class nccl_transport : public transport {
public:
  explicit nccl_transport(std::shared_ptr<nccl_domain> domain);

  [[nodiscard]] std::string_view name() const override { return "nccl"; }
  std::unique_ptr<exposed_memory> expose(std::size_t bytes, memory_kind kind) override;
  std::unique_ptr<reader> make_reader() override;
  [[nodiscard]] bool reads_into(memory_kind kind) const override {
    return kind == memory_kind::cuda;
  }

  /// Collective: brings a region of another rank here. Throws user_error when a rank is lost.
  void deliver(const remote_region& region, double timeout_s);

private:
  class exposed;
  class copy_reader;
  using buffer = std::shared_ptr<std::byte[]>;

  [[nodiscard]] buffer find(const remote_region& region) const;

  std::shared_ptr<nccl_domain> domain_;
  mutable std::mutex mutex_;
  std::map<std::string, buffer> regions_; // by key: own ones, and copies of others'
  std::uint64_t next_key_ = 1;
};

} // namespace millrace::weightsync
