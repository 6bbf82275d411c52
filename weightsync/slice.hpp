#pragma once

#include <cstdint>
#include <vector>

namespace millrace::weightsync {

/// Part of a global tensor, and how it lies in memory: the indices [begin, end) of one axis (all of
/// the other axes), row-major, and of those elements the ones numbered [first, first + count).
/// Axis −1 means the whole tensor as one sequence, so {−1, 0, 0, first, count} is a flat range.
struct slice {
  std::int32_t axis = -1;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;

  bool operator==(const slice&) const = default;
};

using tensor_shape = std::vector<std::int64_t>;

/// All elements of a tensor.
slice whole(const tensor_shape& shape);

/// The indices [begin, end) of `axis`.
slice along(const tensor_shape& shape, std::int32_t axis, std::int64_t begin, std::int64_t end);

/// Of `s`, the elements [first, first + count), counted from the first one of `s`.
slice part_of(const slice& s, std::int64_t first, std::int64_t count);

/// Part `index` of `parts` nearly equal ones of `length`, in multiples of `unit` (a head's rows):
/// [begin, end). Parts may be empty when there are more of them than units.
struct index_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
index_range split(std::int64_t length, std::int64_t unit, std::int32_t index, std::int32_t parts);

/// Product of the extents, or −1 if it, or an extent, is out of range (for input from outside).
std::int64_t elements_of(const tensor_shape& shape);

/// True when `s` names only elements that the tensor has.
bool valid_slice(const tensor_shape& shape, const slice& s);

/// Equally long runs of elements, equally spaced on both sides. All numbers in elements.
struct strided_copy {
  std::int64_t from = 0;        ///< in the source slice's own memory
  std::int64_t to = 0;          ///< in the target slice's own memory
  std::int64_t length = 0;      ///< of one run
  std::int64_t count = 1;       ///< runs
  std::int64_t from_stride = 0; ///< from one run to the next
  std::int64_t to_stride = 0;

  bool operator==(const strided_copy&) const = default;
  [[nodiscard]] std::int64_t elements() const { return length * count; }
};

/// Appends one run; extends the last copy where the run continues it or repeats it at its strides.
void append_run(std::vector<strided_copy>& copies, std::int64_t from, std::int64_t to,
                std::int64_t length);

/// What has to be copied from the memory of slice `from` to that of slice `to` so that every element
/// that both hold is moved once. Neighbouring and regularly spaced runs are merged.
std::vector<strided_copy> intersect(const tensor_shape& shape, const slice& from, const slice& to);

/// Walks through a slice run by run, in the order of its memory, which is also that of the global
/// element numbers.
class run_cursor {
public:
  run_cursor(const tensor_shape& shape, const slice& s);

  [[nodiscard]] bool done() const { return at_ >= last_; }
  /// Number in the global tensor of the element here.
  [[nodiscard]] std::int64_t global() const;
  /// Elements from here to the end of the run.
  [[nodiscard]] std::int64_t left() const;
  /// Position in the slice's memory.
  [[nodiscard]] std::int64_t local() const { return at_ - first_; }
  void advance(std::int64_t elements) { at_ += elements; }
  /// Moves on to the first element whose global number is not below `g`.
  void seek(std::int64_t g);

private:
  std::int64_t run_ = 0;    // elements of a run
  std::int64_t period_ = 0; // from one run to the next in the global tensor
  std::int64_t start_ = 0;  // global number of the first run
  std::int64_t first_ = 0;
  std::int64_t last_ = 0;
  std::int64_t at_ = 0;
};

} // namespace millrace::weightsync
