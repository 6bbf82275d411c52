#pragma once

#include "weightsync/remote_region.hpp"
#include "weightsync/ucx_transport.hpp"

#include <ucp/api/ucp.h>

#include <cstdint>
#include <string>

namespace millrace::weightsync {

/// Throws user_error with UCX's own words when `status` is an error.
void ucx_check(ucs_status_t status, const std::string& what);

ucs_memory_type_t ucx_memory_type(memory_kind kind);

/// UCX, initialised once for a transport and all its workers.
class ucx_context {
public:
  explicit ucx_context(const ucx_options& options);
  ~ucx_context();
  ucx_context(const ucx_context&) = delete;
  ucx_context& operator=(const ucx_context&) = delete;

  [[nodiscard]] ucp_context_h handle() const { return handle_; }
  [[nodiscard]] bool supports(memory_kind kind) const;

private:
  ucp_context_h handle_ = nullptr;
  std::uint64_t memory_types_ = 0;
};

} // namespace millrace::weightsync
