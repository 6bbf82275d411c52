#include "weightsync/delta_base.hpp"

#include "runtime/error.hpp"

#include <cstring>

namespace millrace::weightsync {

void delta_base::keep(std::span<const tensor_view> tensors, version v) {
  if (views_.empty()) {
    std::size_t bytes = 0;
    for (const auto& t : tensors)
      bytes += t.bytes();
    memory_.resize(bytes);
    views_.assign(tensors.begin(), tensors.end());
    auto* at = memory_.data();
    for (auto& view : views_) {
      view.data = at;
      at += view.bytes();
    }
  }
  ensure(views_.size() == tensors.size(), "other tensors than before");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ensure(tensors[i].bytes() == views_[i].bytes(),
           [&] { return tensors[i].name + " is not as large as before"; });
    std::memcpy(views_[i].data, tensors[i].data, tensors[i].bytes());
  }
  number_ = v;
}

} // namespace millrace::weightsync
