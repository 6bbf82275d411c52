#include "runtime/model/tensor_parallel_ops.hpp"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

namespace millrace::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct held_group : torch::CustomClassHolder {
  group_pointer group;
};

struct into_group : Function<into_group> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const group_pointer& group) {
    ctx->saved_data["group"] = held(group);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto sum = grads[0].clone(at::MemoryFormat::Contiguous);
    group_in(ctx->saved_data["group"]).sum(sum);
    return {sum, at::Tensor()};
  }
};

struct out_of_group : Function<out_of_group> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, const group_pointer& group) {
    auto sum = x.clone(at::MemoryFormat::Contiguous);
    group->sum(sum);
    return sum;
  }
  static variable_list backward(AutogradContext*, const variable_list& grads) {
    return {grads[0], at::Tensor()};
  }
};

/// All ranks' rows of a tensor, without what pads them.
at::Tensor all_rows(const tensor_group& group, const at::Tensor& part, std::int64_t tokens) {
  auto whole = at::empty({group.size * part.size(0), part.size(1)}, part.options());
  group.gather(part.contiguous(), whole);
  return whole.narrow(0, 0, tokens);
}

at::Tensor padded_rows(const tensor_group& group, const at::Tensor& x) {
  const auto rows = (x.size(0) + group.size - 1) / group.size * group.size;
  return rows == x.size(0) ? x.contiguous() : at::constant_pad_nd(x, {0, 0, 0, rows - x.size(0)});
}

at::Tensor own_sum(const tensor_group& group, const at::Tensor& x) {
  const auto whole = padded_rows(group, x);
  auto part = at::empty({whole.size(0) / group.size, x.size(1)}, x.options());
  group.scatter_sum(whole, part);
  return part;
}

struct gather_tokens : Function<gather_tokens> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const group_pointer& group,
                            std::int64_t tokens) {
    ctx->saved_data["group"] = held(group);
    return all_rows(*group, x, tokens);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {own_sum(group_in(ctx->saved_data["group"]), grads[0]), at::Tensor(), at::Tensor()};
  }
};

struct scatter_tokens : Function<scatter_tokens> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const group_pointer& group) {
    ctx->saved_data["group"] = held(group);
    ctx->saved_data["tokens"] = x.size(0);
    return own_sum(*group, x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto tokens = ctx->saved_data["tokens"].toInt();
    return {all_rows(group_in(ctx->saved_data["group"]), grads[0], tokens), at::Tensor()};
  }
};

struct collect_rows : Function<collect_rows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const group_pointer& group,
                            std::int64_t tokens) {
    ctx->saved_data["group"] = held(group);
    return all_rows(*group, x, tokens);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto& group = group_in(ctx->saved_data["group"]);
    const auto whole = padded_rows(group, grads[0]);
    const auto rows = whole.size(0) / group.size;
    return {whole.narrow(0, group.rank * rows, rows), at::Tensor(), at::Tensor()};
  }
};

} // namespace

c10::IValue held(const group_pointer& group) {
  auto holder = c10::make_intrusive<held_group>();
  holder->group = group;
  return c10::IValue::make_capsule(std::move(holder));
}

const tensor_group& group_in(const c10::IValue& held) {
  return *static_cast<held_group&>(*held.toCapsule()).group;
}

at::Tensor enter_group(const at::Tensor& x, const group_pointer& group, std::int64_t tokens) {
  if (!group)
    return x;
  return group->sequence ? gather_tokens::apply(x, group, tokens) : into_group::apply(x, group);
}

at::Tensor leave_group(const at::Tensor& x, const group_pointer& group) {
  if (!group)
    return x;
  return group->sequence ? scatter_tokens::apply(x, group) : out_of_group::apply(x, group);
}

at::Tensor collect_tokens(const at::Tensor& x, const group_pointer& group, std::int64_t tokens) {
  return group && group->sequence ? collect_rows::apply(x, group, tokens) : x;
}

} // namespace millrace::model
