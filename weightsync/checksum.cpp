#include "weightsync/checksum.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#include <xxh_x86dispatch.h> // takes AVX2 or AVX-512 where the processor has it
#else
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
#endif

#include <algorithm>
#include <cstring>
#include <new>

namespace millrace::weightsync {

namespace {

// Stores that don't read what they overwrite first.
void stream_copy(std::span<const std::byte> from, std::byte* to) {
  std::size_t at = 0;
#if defined(__x86_64__)
  constexpr std::size_t width = 64;
  at = std::min(from.size(), (width - reinterpret_cast<std::uintptr_t>(to) % width) % width);
  std::memcpy(to, from.data(), at);
  for (; from.size() - at >= width; at += width)
    for (std::size_t k = 0; k < width; k += sizeof(__m128i))
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + k),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.data() + at + k)));
  _mm_sfence();
#endif
  std::memcpy(to + at, from.data() + at, from.size() - at);
}

} // namespace

struct running_checksum::state {
  XXH3_state_t* xxh = XXH3_createState();
  ~state() { XXH3_freeState(xxh); }
};

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t copy_with_checksum(std::span<const std::byte> from, std::byte* to) {
  constexpr std::size_t piece = 16 << 10U; // stays in the first cache between the two
  thread_local running_checksum sum;
  sum.reset();
  for (std::size_t at = 0; at < from.size(); at += piece) {
    auto part = from.subspan(at, std::min(piece, from.size() - at));
    stream_copy(part, to + at);
    sum.update(part);
  }
  return sum.value();
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
