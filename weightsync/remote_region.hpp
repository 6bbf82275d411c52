#pragma once

#include "runtime/tensor_view.hpp"

#include <cstdint>
#include <string>

namespace millrace::weightsync {

/// Memory that others may read, as a transport describes it to its own kind elsewhere. Travels in
/// the manifest.
struct remote_region {
  std::string transport; ///< its name: "local", "ucx"
  std::string peer;      ///< how the owner is reached: bytes that only the transport understands
  std::string key;       ///< what permits to read this memory: likewise
  std::uint64_t address = 0; ///< of its first byte, at the owner
  std::uint64_t bytes = 0;
  memory_kind memory = memory_kind::host;

  bool operator==(const remote_region&) const = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, remote_region& x) {
  return f(x.transport, x.peer, x.key, x.address, x.bytes, x.memory);
}

} // namespace millrace::weightsync
