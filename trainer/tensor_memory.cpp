#include "trainer/tensor_memory.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

namespace millrace::trainer {

namespace {

at::Tensor on_host(std::byte* memory, at::IntArrayRef shape) {
  return at::from_blob(memory, shape, at::kFloat);
}

} // namespace

tensor_view view_of(std::string name, const at::Tensor& t) {
  return {std::move(name), dtype::f32, t.sizes().vec(),
          reinterpret_cast<std::byte*>(t.data_ptr<float>()),
          t.is_cuda() ? memory_kind::cuda : memory_kind::host};
}

at::Tensor tensor_of_view(const tensor_view& v) {
  ensure(v.type == dtype::f32, "what is trained is fp32");
  return at::from_blob(v.data, v.shape,
                       at::TensorOptions(at::kFloat)
                         .device(v.memory == memory_kind::cuda ? at::kCUDA : at::kCPU));
}

void copy_out(const tensor_view& v, std::byte* to) {
  if (v.memory == memory_kind::host) {
    std::memcpy(to, v.data, v.bytes());
    return;
  }
  at::NoGradGuard no_grad;
  on_host(to, v.shape).copy_(tensor_of_view(v));
}

void copy_in(const tensor_view& v, const std::byte* from) {
  if (v.memory == memory_kind::host) {
    std::memcpy(v.data, from, v.bytes());
    return;
  }
  at::NoGradGuard no_grad;
  tensor_of_view(v).copy_(on_host(const_cast<std::byte*>(from), v.shape));
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
