#pragma once

#include <cstdint>

namespace millrace {

/// A permutation of 0 … n − 1 drawn from (seed, stream), that is computed for one index at a time:
/// a set of any size is shuffled without a table, and a resumed run needs only its position.
/// A Feistel network over the next power of four, walked until it lands below n.
class shuffled_order {
public:
  shuffled_order(std::int64_t n, std::uint64_t seed, std::int64_t stream);

  /// \param index below n
  [[nodiscard]] std::int64_t operator()(std::int64_t index) const;
  [[nodiscard]] std::int64_t size() const { return n_; }

private:
  [[nodiscard]] std::uint64_t scramble(std::uint64_t x) const;

  std::int64_t n_;
  std::uint64_t seed_;
  std::uint64_t stream_;
  unsigned half_bits_ = 1;
};

} // namespace millrace
