#pragma once

#include "weightsync/slice.hpp"

#include <algorithm>

namespace millrace::weightsync {

/// Cuts a slice's memory where a run or a row (an index of axis 0) ends, and calls
/// visit(row, local, length) for each piece, in order; `local` counts from the slice's first element.
template <class Visit>
void for_row_segments(const tensor_shape& shape, const slice& part, Visit&& visit) {
  if (part.count == 0)
    return;
  auto row = shape.empty() ? 1 : elements_of(shape) / shape[0];
  for (run_cursor at(shape, part); !at.done();) {
    auto global = at.global();
    auto length = std::min(at.left(), row - global % row);
    visit(global / row, at.local(), length);
    at.advance(length);
  }
}

} // namespace millrace::weightsync
