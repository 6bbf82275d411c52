#pragma once

#include "weightsync/transport.hpp"

#include <map>
#include <mutex>

namespace millrace::weightsync {

/// Publisher and receivers in one process: a read is a memcpy by the thread that asks for it, in
/// steps short enough to be given up in between. Readers must not outlive the transport.
class local_transport : public transport {
public:
  [[nodiscard]] std::string_view name() const override { return "local"; }
  std::unique_ptr<exposed_memory> expose(std::size_t bytes, memory_kind kind) override;
  std::unique_ptr<reader> make_reader() override;
  [[nodiscard]] bool reads_into(memory_kind) const override { return true; }

private:
  class exposed;
  class local_reader;
  using buffer = std::shared_ptr<std::vector<std::byte>>;

  [[nodiscard]] buffer find(const std::string& key) const;

  mutable std::mutex mutex_;
  std::map<std::string, std::weak_ptr<std::vector<std::byte>>> exposed_;
  std::uint64_t next_key_ = 1;
};

} // namespace millrace::weightsync
