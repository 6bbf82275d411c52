#include "weightsync/checksum.hpp"

#if defined(__x86_64__)
#include <xxh_x86dispatch.h> // takes AVX2 or AVX-512 where the processor has it
#else
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
#endif

#include <new>

namespace millrace::weightsync {

struct running_checksum::state {
  XXH3_state_t* xxh = XXH3_createState();
  ~state() { XXH3_freeState(xxh); }
};

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

running_checksum::running_checksum() : state_(std::make_unique<state>()) {
  if (state_->xxh == nullptr)
    throw std::bad_alloc();
  reset();
}

running_checksum::~running_checksum() = default;

void running_checksum::reset() { XXH3_64bits_reset(state_->xxh); }

void running_checksum::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}

std::uint64_t running_checksum::value() const { return XXH3_64bits_digest(state_->xxh); }

} // namespace millrace::weightsync
