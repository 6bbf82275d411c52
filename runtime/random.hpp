#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace millrace {

/// Philox4x32-10: a block cipher of a counter (Salmon et al., "Parallel random numbers: as easy as
/// 1, 2, 3", SC'11). The same (counter, key) gives the same four words on every machine, so a draw
/// can be named by what it is for instead of by how many draws came before it.
struct philox {
  using block = std::array<std::uint32_t, 4>;

  static constexpr block draw(block counter, std::uint64_t key) {
    auto k0 = static_cast<std::uint32_t>(key);
    auto k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const auto a = std::uint64_t{0xD2511F53U} * counter[0];
      const auto b = std::uint64_t{0xCD9E8D57U} * counter[2];
      counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ k0,
                 static_cast<std::uint32_t>(b),
                 static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ k1,
                 static_cast<std::uint32_t>(a)};
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    return counter;
  }
};

/// Two words as a number in [0, 1) with 53 random bits.
constexpr double unit_interval(std::uint32_t high, std::uint32_t low) {
  const auto bits = (std::uint64_t{high} << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

/// The draw that samples the token at `position` (counted from the start of the prompt) of answer
/// `sample` to prompt `prompt_id`: in [0, 1). Depends on nothing else, so neither batching nor
/// interruption changes what is sampled.
constexpr double sampling_draw(std::uint64_t seed, std::int64_t prompt_id, std::int32_t sample,
                               std::int32_t position) {
  const auto id = static_cast<std::uint64_t>(prompt_id);
  const auto words = philox::draw({static_cast<std::uint32_t>(id),
                                   static_cast<std::uint32_t>(id >> 32),
                                   static_cast<std::uint32_t>(sample),
                                   static_cast<std::uint32_t>(position)}, seed);
  return unit_interval(words[0], words[1]);
}

/// FNV-1a: names a stream by text, the same on every machine.
constexpr std::uint64_t stream_of(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325U;
  for (const char c : name)
    h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return h;
}

/// A sequence of draws named by (seed, stream). A UniformRandomBitGenerator; but the standard
/// library's distributions and std::shuffle differ between implementations: use below().
class random_stream {
public:
  using result_type = std::uint64_t;

  constexpr explicit random_stream(std::uint64_t seed, std::uint64_t stream = 0)
      : seed_(seed), stream_(stream) {}

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return ~result_type{0}; }

  constexpr result_type operator()() {
    const auto words = next();
    return std::uint64_t{words[0]} << 32 | words[1];
  }

  /// In [0, 1).
  constexpr double uniform() {
    const auto words = next();
    return unit_interval(words[0], words[1]);
  }

  /// In [0, n), without bias that could be noticed (2⁻⁶⁴ n). 0 when n is 0.
  constexpr std::uint64_t below(std::uint64_t n) {
    __extension__ using wide = unsigned __int128;
    return static_cast<std::uint64_t>(wide{(*this)()} * n >> 64);
  }

  /// Mean 0, variance 1, by the sum of eight 16-bit uniforms: within ±4.9, made of integer steps
  /// only, so equal on every machine (a logarithm or cosine is not). For initial weights.
  constexpr float normal() {
    const auto words = next();
    std::int64_t sum = 0;
    for (auto w : words)
      sum += (w & 0xFFFFU) + (w >> 16);
    // Eight uniforms on {0 … 65535}: mean 4·65535, variance 8·(65536² − 1)/12.
    return static_cast<float>(static_cast<double>(sum - 4 * 65535) * (1.0 / 53509.91992145));
  }

private:
  constexpr philox::block next() {
    const auto n = count_++;
    return philox::draw({static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n >> 32),
                         static_cast<std::uint32_t>(stream_),
                         static_cast<std::uint32_t>(stream_ >> 32)}, seed_);
  }

  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t count_ = 0;
};

} // namespace millrace
