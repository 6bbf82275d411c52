#include "weightsync/xxh3_secret.hpp"

#include "runtime/error.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

namespace millrace::weightsync::xxh3 {

namespace {

std::uint64_t word(const void* bytes) {
  std::uint64_t w = 0;
  std::memcpy(&w, bytes, sizeof(w));
  return w;
}

} // namespace

key_schedule default_keys() {
  static_assert(sizeof(XXH3_kSecret) == secret_bytes);
  const auto* secret = XXH3_kSecret;
  key_schedule keys;
  for (std::size_t i = 0; i < std::size(keys.stripes_); ++i)
    keys.stripes_[i] = word(secret + 8 * i);
  for (std::size_t i = 0; i < lanes; ++i) {
    keys.scramble_[i] = word(secret + secret_bytes - stripe + 8 * i);
    keys.last_[i] = word(secret + secret_bytes - stripe - 7 + 8 * i);
    keys.finish_[i] = word(secret + 11 + 8 * i);
  }
  return keys;
}

std::uint64_t hash_by_steps(std::span<const std::byte> bytes) {
  ensure(bytes.size() >= shortest, "too short for these steps");
  static const auto keys = default_keys();
  std::uint64_t acc[lanes];
  for (std::size_t l = 0; l < lanes; ++l)
    acc[l] = initial(l);
  auto take = [&](std::size_t at, const std::uint64_t* key) {
    std::uint64_t next[lanes];
    for (std::size_t l = 0; l < lanes; ++l)
      next[l] = accumulate(acc[l], word(&bytes[at + 8 * l]), word(&bytes[at + 8 * (l ^ 1U)]),
                           key[l]);
    std::memcpy(acc, next, sizeof(acc));
  };
  auto blocks = (bytes.size() - 1) / block;
  for (std::size_t b = 0; b < blocks; ++b) {
    for (std::size_t s = 0; s < stripes; ++s)
      take(b * block + s * stripe, keys.stripes_ + s);
    for (std::size_t l = 0; l < lanes; ++l)
      acc[l] = scramble(acc[l], keys.scramble_[l]);
  }
  auto rest = (bytes.size() - 1 - blocks * block) / stripe;
  for (std::size_t s = 0; s < rest; ++s)
    take(blocks * block + s * stripe, keys.stripes_ + s);
  take(bytes.size() - stripe, keys.last_);
  return finish(acc, keys.finish_, bytes.size());
}

} // namespace millrace::weightsync::xxh3
