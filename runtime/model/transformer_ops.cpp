#include "runtime/model/transformer_ops.hpp"

#include "runtime/error.hpp"
#include "runtime/model/kernels.hpp"
#include "runtime/model/wide_product.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>

namespace millrace::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr std::int64_t row_grain = 64; ///< rows worth a thread
constexpr std::int64_t sum_rows = 256; ///< rows of one partial sum, whatever the threads

thread_local bool always_composed = false;

/// Kernels compute in fp32. What is bf16 is made so on its way in, and bf16 again on its way out and
/// where it is kept for the backward pass.
bool fused(const at::Tensor& x) {
  return !always_composed && x.device().is_cpu()
         && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor wide(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

struct fused_rms_norm : Function<fused_rms_norm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    const auto in = wide(x);
    auto out = at::empty_like(in);
    const auto d = in.size(1);
    at::parallel_for(0, in.size(0), row_grain, [&](std::int64_t first, std::int64_t last) {
      kernels().rms_norm(in.const_data_ptr<float>() + first * d, d, weight.const_data_ptr<float>(),
                         out.mutable_data_ptr<float>() + first * d, d, last - first, d,
                         static_cast<float>(eps));
    });
    ctx->save_for_backward({x, weight});
    ctx->saved_data["eps"] = eps;
    return out.to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto x = wide(saved[0]), gy = wide(grads[0]);
    const auto& weight = saved[1];
    const auto eps = static_cast<float>(ctx->saved_data["eps"].toDouble());
    const auto rows = x.size(0), d = x.size(1);
    auto gx = at::empty_like(x);
    // Partial sums over fixed pieces keep the result independent of the number of threads.
    const auto pieces = (rows + sum_rows - 1) / sum_rows;
    auto gw = at::zeros({std::max<std::int64_t>(pieces, 1), d}, x.options());
    at::parallel_for(0, pieces, 1, [&](std::int64_t first, std::int64_t last) {
      for (auto i = first; i < last; ++i) {
        const auto at = i * sum_rows;
        kernels().rms_norm_backward(x.const_data_ptr<float>() + at * d,
                                    weight.const_data_ptr<float>(),
                                    gy.const_data_ptr<float>() + at * d,
                                    gx.mutable_data_ptr<float>() + at * d,
                                    gw.mutable_data_ptr<float>() + i * d,
                                    std::min(sum_rows, rows - at), d, eps);
      }
    });
    return {gx.to(saved[0].scalar_type()), gw.sum(0), at::Tensor()};
  }
};

struct fused_swiglu : Function<fused_swiglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    const auto in = wide(gate_up);
    const auto ff = in.size(1) / 2;
    auto out = at::empty({in.size(0), ff}, in.options());
    at::parallel_for(0, in.size(0), row_grain, [&](std::int64_t first, std::int64_t last) {
      kernels().swiglu(in.const_data_ptr<float>() + first * 2 * ff, 2 * ff,
                       out.mutable_data_ptr<float>() + first * ff, ff, last - first, ff);
    });
    ctx->save_for_backward({gate_up});
    return out.to(gate_up.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto kept = ctx->get_saved_variables()[0];
    const auto in = wide(kept), g = wide(grads[0]);
    const auto ff = in.size(1) / 2;
    auto out = at::empty_like(in);
    at::parallel_for(0, in.size(0), row_grain, [&](std::int64_t first, std::int64_t last) {
      kernels().swiglu_backward(in.const_data_ptr<float>() + first * 2 * ff,
                                g.const_data_ptr<float>() + first * ff,
                                out.mutable_data_ptr<float>() + first * 2 * ff, last - first, ff);
    });
    return {out.to(kept.scalar_type())};
  }
};

using maybe_tensor = std::optional<at::Tensor>;

/// A product in `type`; bf16 ones are made of rounded numbers in fp32 on a CPU, where that is faster
/// than what libtorch has for bf16, and in fp32 on a CUDA device where fp32 is wanted: gradients of
/// weights, to which every micro-batch adds.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
  if (a.scalar_type() == at::kBFloat16 && (a.device().is_cpu() || (a.is_cuda() && type == at::kFloat)))
    return wide_product(a, b).to(type);
  return at::mm(a, b).to(type);
}

/// One product for up to three matrices, in x's type.
struct fused_linear : Function<fused_linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& joined,
                            const maybe_tensor& joined_bias, const at::Tensor& a,
                            const maybe_tensor& b, const maybe_tensor& c,
                            const maybe_tensor& bias_a, const maybe_tensor& bias_b,
                            const maybe_tensor& bias_c) {
    ctx->save_for_backward({x, joined});
    const auto size = [](const maybe_tensor& t) { return t ? t->size(0) : 0; };
    ctx->saved_data["sizes"] = std::vector<std::int64_t>{a.size(0), size(b), size(c)};
    ctx->saved_data["bias_sizes"] =
      std::vector<std::int64_t>{size(bias_a), size(bias_b), size(bias_c)};
    if (x.scalar_type() == joined.scalar_type())
      return joined_bias ? at::addmm(*joined_bias, x, joined.t()) : at::mm(x, joined.t());
    const auto y = product(x, joined.to(x.scalar_type()).t(), x.scalar_type());
    return joined_bias ? y.add(joined_bias->to(x.scalar_type())) : y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto& g = grads[0];
    variable_list out(9);
    const auto split = [&](const char* sizes, std::size_t at, const at::Tensor& whole) {
      std::int64_t from = 0;
      for (const auto n : ctx->saved_data[sizes].toIntVector()) {
        if (n > 0)
          out[at] = whole.narrow(0, from, n);
        ++at;
        from += n;
      }
    };
    // needs_input_grad counts the tensors that were given: x, joined, joined_bias if any, a, …
    const bool biased = ctx->saved_data["bias_sizes"].toIntVector()[0] > 0;
    if (ctx->needs_input_grad(0))
      out[0] = product(g, saved[1].to(g.scalar_type()), g.scalar_type());
    if (ctx->needs_input_grad(biased ? 3 : 2)) {
      split("sizes", 3, product(g.t(), saved[0], saved[1].scalar_type()));
      if (biased)
        split("bias_sizes", 6, g.sum(0, false, saved[1].scalar_type()));
    }
    return out;
  }
};

/// What attention keeps for its backward pass beside tensors.
struct held_layout : torch::CustomClassHolder {
  std::shared_ptr<const attention_layout> layout;
};

attention_input input_of(const at::Tensor& rotated, const attention_layout& layout) {
  return {rotated.const_data_ptr<float>(), layout.heads, layout.kv_heads, layout.head_dim,
          &layout.parts, &layout.trees};
}

/// Rotates the q and k heads of every token in place.
void rotate_all(at::Tensor& qkv, const attention_layout& layout, const std::vector<float>& sin) {
  const auto half = layout.head_dim / 2, width = qkv.size(1);
  const auto* position = layout.positions.const_data_ptr<std::int64_t>();
  auto* x = qkv.mutable_data_ptr<float>();
  at::parallel_for(0, qkv.size(0), row_grain, [&](std::int64_t first, std::int64_t last) {
    for (auto i = first; i < last; ++i)
      kernels().rope(x + i * width, layout.heads + layout.kv_heads, layout.head_dim,
                     layout.rotation->host.cos.data() + position[i] * half,
                     sin.data() + position[i] * half);
  });
}

struct fused_attention : Function<fused_attention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv,
                            const std::shared_ptr<const attention_layout>& layout) {
    auto rotated = qkv.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
    rotate_all(rotated, *layout, layout->rotation->host.sin);
    auto out = at::empty({qkv.size(0), layout->heads * layout->head_dim}, rotated.options());
    auto log_sums = at::empty({qkv.size(0), layout->heads}, rotated.options());
    const auto in = input_of(rotated, *layout);
    at::parallel_for(0, in.tasks(), 1, [&](std::int64_t first, std::int64_t last) {
      attention_forward(in, out.mutable_data_ptr<float>(), log_sums.mutable_data_ptr<float>(),
                        first, last);
    });
    const auto result = out.to(qkv.scalar_type());
    ctx->save_for_backward({rotated.to(qkv.scalar_type()), result, log_sums});
    auto held = c10::make_intrusive<held_layout>();
    held->layout = layout;
    ctx->saved_data["layout"] = c10::IValue::make_capsule(std::move(held));
    return result;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto holder = ctx->saved_data["layout"].toCapsule();
    const auto& layout = *static_cast<held_layout&>(*holder).layout;
    const auto rotated = wide(saved[0]), result = wide(saved[1]), g = wide(grads[0]);
    auto g_qkv = at::empty_like(rotated);
    const auto in = input_of(rotated, layout);
    at::parallel_for(0, in.tasks(), 1, [&](std::int64_t first, std::int64_t last) {
      attention_backward(in, result.const_data_ptr<float>(), saved[2].const_data_ptr<float>(),
                         g.const_data_ptr<float>(), g_qkv.mutable_data_ptr<float>(), first, last);
    });
    rotate_all(g_qkv, layout, layout.rotation->minus_sin);
    return {g_qkv.to(saved[0].scalar_type()), at::Tensor()};
  }
};

padded_rows pad(const segments& parts, std::int64_t rows, c10::Device device) {
  const auto before = [&](std::int64_t s) {
    return parts.prefix_of(s) < 0 ? 0 : parts.length(parts.prefix_of(s));
  };
  std::map<int, std::vector<std::int64_t>> alike; // by the power of two above their length
  for (std::int64_t s = 0; s < parts.count(); ++s)
    if (parts.length(s) > 0)
      alike[std::bit_width(static_cast<std::uint64_t>(before(s) + parts.length(s) - 1))].push_back(s);
  padded_rows out;
  auto back = at::empty({rows}, at::kLong);
  auto* slot_of = back.mutable_data_ptr<std::int64_t>();
  std::int64_t begin = 0;
  for (const auto& [power, which] : alike) {
    padded_rows::rectangle r{static_cast<std::int64_t>(which.size()), 0, {}};
    for (auto s : which)
      r.longest = std::max<std::int64_t>(r.longest, before(s) + parts.length(s));
    auto gather = at::zeros({r.segments * r.longest}, at::kLong);
    auto* from = gather.mutable_data_ptr<std::int64_t>();
    for (std::size_t k = 0; k < which.size(); ++k) {
      const auto s = which[k];
      auto at = static_cast<std::int64_t>(k) * r.longest;
      for (std::int64_t i = 0; i < before(s); ++i)
        from[at++] = parts.begin(parts.prefix_of(s)) + i;
      for (std::int64_t i = parts.begin(s); i < parts.begin(s + 1); ++i) {
        slot_of[i] = begin + at;
        from[at++] = i;
      }
    }
    begin += r.segments * r.longest;
    r.from = gather.to(device);
    out.rectangles.push_back(std::move(r));
  }
  out.slot = back.to(device);
  return out;
}

/// Over each rectangle: causality keeps the padding unseen. What a prefix's own queries find a second
/// time is left out. Angles are applied in fp32, whatever the layers compute in.
at::Tensor composed_attention(const at::Tensor& qkv, const attention_layout& layout) {
  const auto n = qkv.size(0), h = layout.heads, kv = layout.kv_heads, dim = layout.head_dim;
  ensure(layout.padded.has_value(), "attention is composed, but its layout isn't complete");
  const auto heads = qkv.view({n, h + 2 * kv, dim});
  const auto wide = c10::promoteTypes(qkv.scalar_type(), at::kFloat);
  const auto at_positions = [&](const at::Tensor& table) {
    return table.index_select(0, layout.positions).to(wide).unsqueeze(1);
  };
  const auto turned = at::cat({rotated(heads.narrow(1, 0, h + kv).to(wide),
                                       at_positions(layout.rotation->cos),
                                       at_positions(layout.rotation->sin)).to(qkv.scalar_type()),
                               heads.narrow(1, h + kv, kv)}, 1);
  const auto expand = [&](const at::Tensor& x) {
    return kv == h ? x : x.repeat_interleave(h / kv, 1);
  };
  std::vector<at::Tensor> results;
  for (const auto& r : layout.padded->rectangles) {
    const auto rectangle = turned.index_select(0, r.from)
                             .view({r.segments, r.longest, h + 2 * kv, dim}).transpose(1, 2);
    const auto out = at::scaled_dot_product_attention(rectangle.narrow(1, 0, h),
                                                      expand(rectangle.narrow(1, h, kv)),
                                                      expand(rectangle.narrow(1, h + kv, kv)), {},
                                                      0.0, /*is_causal=*/true);
    results.push_back(out.transpose(1, 2).reshape({r.segments * r.longest, h * dim}));
  }
  return at::cat(results).index_select(0, layout.padded->slot);
}

maybe_tensor part(const std::vector<at::Tensor>& parts, std::size_t i) {
  return i < parts.size() ? maybe_tensor(parts[i]) : maybe_tensor();
}

} // namespace

composed_operations::composed_operations() : before_(always_composed) { always_composed = true; }
composed_operations::~composed_operations() { always_composed = before_; }

void complete(attention_layout& layout, const at::Tensor& x) {
  layout.trees = layout.parts.trees();
  if (!fused(x))
    layout.padded = pad(layout.parts, layout.positions.numel(), layout.positions.device());
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return fused(x) ? fused_rms_norm::apply(x, weight, eps)
                  : at::rms_norm(x.to(weight.scalar_type()), {x.size(1)}, weight, eps)
                      .to(x.scalar_type());
}

at::Tensor joined_linear(const at::Tensor& x, const joined_weights& w) {
  ensure(!w.parts.empty() && w.parts.size() <= 3, "one to three matrices are joined");
  const auto bias = w.joined_bias.defined() ? maybe_tensor(w.joined_bias) : maybe_tensor();
  return fused_linear::apply(x, w.joined, bias, w.parts[0], part(w.parts, 1), part(w.parts, 2),
                             part(w.part_biases, 0), part(w.part_biases, 1),
                             part(w.part_biases, 2));
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  if (fused(gate_up))
    return fused_swiglu::apply(gate_up);
  const auto halves = gate_up.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

at::Tensor causal_attention(const at::Tensor& qkv,
                            const std::shared_ptr<const attention_layout>& layout) {
  return fused(qkv) ? fused_attention::apply(qkv, layout) : composed_attention(qkv, *layout);
}

} // namespace millrace::model
