#include "trainer/tensor_memory.hpp"

#include "runtime/model/weight_transfer.hpp"

#include <ATen/core/grad_mode.h>

#include <cstring>
#include <utility>

namespace millrace::trainer {

namespace {

/// What `v` is of, in the host's memory.
at::Tensor on_host(tensor_view v, std::byte* memory) {
  v.data = memory;
  v.memory = memory_kind::host;
  return model::tensor_of(v);
}

} // namespace

tensor_view view_of(std::string name, const at::Tensor& t) {
  return {std::move(name), dtype::f32, t.sizes().vec(),
          reinterpret_cast<std::byte*>(t.data_ptr<float>()),
          t.is_cuda() ? memory_kind::cuda : memory_kind::host};
}

void copy_out(const tensor_view& v, std::byte* to) {
  if (v.memory == memory_kind::host) {
    std::memcpy(to, v.data, v.bytes());
    return;
  }
  at::NoGradGuard no_grad;
  on_host(v, to).copy_(model::tensor_of(v));
}

void copy_in(const tensor_view& v, const std::byte* from) {
  if (v.memory == memory_kind::host) {
    std::memcpy(v.data, from, v.bytes());
    return;
  }
  at::NoGradGuard no_grad;
  model::tensor_of(v).copy_(on_host(v, const_cast<std::byte*>(from)));
}

void host_tensors::take(const std::vector<tensor_view>& views) {
  views_ = views;
  std::size_t bytes = 0;
  for (const auto& v : views)
    bytes += v.memory == memory_kind::host ? 0 : v.bytes();
  if (bytes > bytes_) {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    bytes_ = bytes;
  }
  auto* at = memory_.get();
  for (auto& v : views_)
    if (v.memory != memory_kind::host) {
      copy_out(v, at);
      v.data = at;
      v.memory = memory_kind::host;
      at += v.bytes();
    }
}

} // namespace millrace::trainer
