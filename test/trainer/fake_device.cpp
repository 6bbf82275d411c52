#include "test/trainer/fake_device.hpp"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <optional>

namespace {

constexpr auto type = c10::DeviceType::PrivateUse1;

struct fake_memory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* p = bytes > 0 ? std::malloc(bytes) : nullptr;
    return {p, p, &std::free, c10::Device(type, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

fake_memory memory;

/// What libtorch asks of a device before gradients flow there.
struct fake_hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
};

fake_hooks hooks;

/// The same memory as a tensor on the CPU.
at::Tensor on_cpu(const at::Tensor& t) {
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options().device(at::kCPU));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

const at::Tensor& resize_in_place(const at::Tensor& self, c10::IntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(size)) * self.element_size();
  if (bytes > self.storage().nbytes()) {
    auto& storage = const_cast<c10::Storage&>(self.storage());
    storage.set_data_ptr_noswap(memory.allocate(bytes));
    storage.set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes())
    resize_in_place(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

/// Numbers may be on the CPU, as CUDA's operations allow it; nothing else.
void one_device(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::optional<c10::Device> found;
  const auto look = [&](const at::Tensor& t) {
    if (!t.defined() || t.dim() == 0)
      return;
    TORCH_CHECK(!found || *found == t.device(), op.schema().name(), ": a tensor on ", t.device(),
                " among those on ", *found);
    found = t.device();
  };
  const auto n = op.schema().arguments().size();
  for (const auto& value : torch::jit::last(stack, n)) {
    if (value.isTensor())
      look(value.toTensor());
    else if (value.isTensorList())
      for (const at::Tensor& t : value.toTensorVector())
        look(t);
    else if (value.isOptionalTensorList())
      for (const auto& t : value.toOptionalTensorVector())
        if (t)
          look(*t);
  }
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  one_device(op, *stack);
  at::native::cpu_fallback(op, stack);
}

} // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuardImpl<DeviceType::PrivateUse1>)
} // namespace c10::impl

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &resize_in_place);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
}

namespace millrace::toy {

c10::Device fake_device() {
  static const bool once = [] {
    c10::register_privateuse1_backend("fake");
    c10::SetAllocator(type, &memory);
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
  }();
  static_cast<void>(once);
  return {type, 0};
}

} // namespace millrace::toy
