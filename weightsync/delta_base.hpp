#pragma once

#include "runtime/ids.hpp"
#include "runtime/tensor_view.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace millrace::weightsync {

/// A receiver's own copy of the version that it pulled last, which the changes of the next one are
/// applied to: what the tensors themselves hold by then is their owner's business.
class delta_base {
public:
  /// Copies tensors in host memory; those of later calls are of the same number and shapes.
  void keep(std::span<const tensor_view> tensors, version v);
  /// For pull_options::base; empty before the first keep().
  [[nodiscard]] std::span<const tensor_view> tensors() const { return views_; }
  /// For pull_options::base_version; no_version before the first keep().
  [[nodiscard]] version number() const { return number_; }

private:
  std::vector<std::byte> memory_;
  std::vector<tensor_view> views_;
  version number_ = no_version;
};

} // namespace millrace::weightsync
