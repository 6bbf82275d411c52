#pragma once

// XXH3 (64 bits, no seed, inputs over 240 bytes) step by step, for processors without libxxhash: a
// GPU gives each of the eight accumulators a thread of its own. https://github.com/Cyan4973/xxHash,
// doc/xxhash_spec.md. The secret is the library's own (see xxh3_secret()).

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define MILLRACE_EVERYWHERE __host__ __device__ inline
#else
#define MILLRACE_EVERYWHERE inline
#endif

namespace millrace::weightsync::xxh3 {

constexpr std::size_t lanes = 8;
constexpr std::size_t stripe = 64;        // bytes: eight lanes of eight
constexpr std::size_t secret_bytes = 192; // of the default secret
constexpr std::size_t stripes = (secret_bytes - stripe) / 8; // of a block
constexpr std::size_t block = stripe * stripes;
constexpr std::size_t shortest = 241; // shorter inputs are hashed in other ways

constexpr std::uint64_t prime32_1 = 0x9E3779B1U;
constexpr std::uint64_t prime64_1 = 0x9E3779B185EBCA87ULL;

MILLRACE_EVERYWHERE std::uint64_t initial(std::size_t lane) {
  constexpr std::uint64_t values[lanes] = {0xC2B2AE3DU,           0x9E3779B185EBCA87ULL,
                                           0xC2B2AE3D27D4EB4FULL, 0x165667B19E3779F9ULL,
                                           0x85EBCA77C2B2AE63ULL, 0x85EBCA77U,
                                           0x27D4EB2F165667C5ULL, 0x9E3779B1U};
  return values[lane];
}

/// A lane takes in its own word of the stripe and its neighbour's (lane ^ 1); `key` is its word of
/// the secret, which moves on by 8 bytes with each stripe of a block.
MILLRACE_EVERYWHERE std::uint64_t accumulate(std::uint64_t acc, std::uint64_t own,
                                             std::uint64_t neighbour, std::uint64_t key) {
  auto mixed = own ^ key;
  return acc + neighbour + (mixed & 0xFFFFFFFFU) * (mixed >> 32U);
}

/// After each whole block; `key` is the lane's word of the secret's last 64 bytes.
MILLRACE_EVERYWHERE std::uint64_t scramble(std::uint64_t acc, std::uint64_t key) {
  return (acc ^ (acc >> 47U) ^ key) * prime32_1;
}

MILLRACE_EVERYWHERE std::uint64_t folded_product(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
  return (a * b) ^ __umul64hi(a, b);
#else
  __extension__ using wide = unsigned __int128;
  auto p = static_cast<wide>(a) * b;
  return static_cast<std::uint64_t>(p) ^ static_cast<std::uint64_t>(p >> 64U);
#endif
}

/// The hash out of the eight accumulators; `keys`: the secret's bytes from 11 on, as eight words.
MILLRACE_EVERYWHERE std::uint64_t finish(const std::uint64_t* acc, const std::uint64_t* keys,
                                         std::uint64_t length) {
  auto h = length * prime64_1;
  for (std::size_t i = 0; i < lanes; i += 2)
    h += folded_product(acc[i] ^ keys[i], acc[i + 1] ^ keys[i + 1]);
  h ^= h >> 37U;
  h *= 0x165667919E3779F9ULL;
  return h ^ (h >> 32U);
}

/// All words of the secret that the steps above need, at even places.
struct key_schedule {
  std::uint64_t stripes_[stripes + lanes - 1] = {}; // lane l of stripe s: [s + l]
  std::uint64_t scramble_[lanes] = {};
  std::uint64_t last_[lanes] = {}; // for the input's last 64 bytes
  std::uint64_t finish_[lanes] = {};
};

} // namespace millrace::weightsync::xxh3
