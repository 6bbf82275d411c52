#pragma once

#include "runtime/model/transformer.hpp"
#include "trainer/collectives.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace millrace::trainer {

/// A piece [begin, end) of the flat gradient, summed over the data-parallel ranks in one operation.
struct gradient_bucket {
  std::int64_t begin = 0, end = 0;
  int owner = -1;       ///< the only rank that needs the sum; −1: all
};

/// Buckets of about `bytes` in the order in which backward completes them: the flat buffer's end
/// first. With `owners` > 0 the buffer is divided evenly among so many ranks, and no bucket crosses
/// from one's part to another's.
std::vector<gradient_bucket> gradient_buckets(std::int64_t elements, std::int64_t bytes,
                                              int owners);

/// The range of a flat buffer that rank `rank` of `ranks` owns (ZeRO stage 1, Rajbhandari et al.
/// 2020).
struct flat_range {
  std::int64_t begin = 0, end = 0;
};
flat_range owned_range(std::int64_t elements, int rank, int ranks);

/// Sums gradients over data-parallel ranks, bucket by bucket, while backward still computes those of
/// earlier layers.
class gradient_reducer {
public:
  /// `network` and `data` must outlive this. `sharded`: each rank gets only the sum that it owns.
  gradient_reducer(model::transformer& network, collectives& data, bool sharded,
                   std::int64_t bucket_bytes = std::int64_t{4} << 20);
  ~gradient_reducer();

  /// The next backward pass is the last before finish(): buckets leave as soon as they are complete.
  void arm();
  /// Sends what has not left, and waits for all. Every rank calls it once per optimiser step.
  void finish();

private:
  struct state;
  std::shared_ptr<state> state_;
};

/// Over a tensor-parallel group: sums the gradients of which each rank has a part only (norms of
/// query and key heads; with trainer.parallel.sequence all that isn't split). After backward, and
/// after finish(). Nothing without a group.
void sum_partial_gradients(model::transformer& network);

} // namespace millrace::trainer
