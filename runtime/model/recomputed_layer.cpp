#include "runtime/model/recomputed_layer.hpp"

#include <torch/csrc/autograd/custom_function.h>

namespace millrace::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

using layer_function = std::function<at::Tensor(const at::Tensor&)>;

struct held_layer : torch::CustomClassHolder {
  layer_function layer;
};

struct recomputed_layer : Function<recomputed_layer> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const layer_function& layer) {
    auto held = c10::make_intrusive<held_layer>();
    held->layer = layer;
    ctx->saved_data["layer"] = c10::IValue::make_capsule(std::move(held));
    ctx->save_for_backward({x});
    return layer(x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto holder = ctx->saved_data["layer"].toCapsule();
    at::AutoGradMode with_gradient(true);
    const auto x = ctx->get_saved_variables()[0].detach().requires_grad_();
    static_cast<held_layer&>(*holder).layer(x).backward(grads[0]);
    return {x.grad(), at::Tensor()};
  }
};

} // namespace

at::Tensor recomputed(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> layer) {
  return recomputed_layer::apply(x, layer);
}

} // namespace millrace::model
