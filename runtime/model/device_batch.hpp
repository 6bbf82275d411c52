#pragma once

#include "runtime/model/decoder.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <set>
#include <span>
#include <vector>

namespace millrace::model {

/// Runs as tensors on a device, N rows in all: first those of one token, which attend together, then
/// the others, each by its own. What says where is int64, and comes to the device in one copy.
struct device_batch {
  at::Tensor tokens, positions; ///< [N]
  at::Tensor slots;             ///< [N]: block · block_tokens + place, in the cache
  at::Tensor wanted;            ///< [W]: rows whose logits are wanted, in the runs' order
  /// Places in the cache that hold another sequence's numbers and that masks will hide while this one
  /// grows towards them: behind the last row of a block that its run begins, or that was copied.
  at::Tensor stale;

  std::int64_t singles = 0; ///< runs of one token
  std::int64_t pages = 0;   ///< blocks of the longest of these
  at::Tensor tables;        ///< [singles · pages] blocks, the shorter ones' padded
  at::Tensor seen;          ///< [singles, 1, 1, pages · block_tokens] bool

  struct prompt {
    std::int64_t row = 0, rows = 0;
    std::int64_t context = 0; ///< tokens with those before it
    at::Tensor blocks;        ///< that hold the context; undefined where the run begins it
    at::Tensor seen;          ///< [rows, context] bool; undefined where causality is all
  };
  std::vector<prompt> prompts;

  [[nodiscard]] std::int64_t rows() const { return tokens.size(0); }
};

/// `padding` is a block without any sequence's numbers, `copied` has those blocks that were copied to
/// and not written since.
device_batch lay_out(std::span<const token_run> runs, std::int32_t padding,
                     const std::set<std::int32_t>& copied, c10::Device device);

} // namespace millrace::model
