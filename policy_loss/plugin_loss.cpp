#include "policy_loss/plugins.hpp"
#include "policy_loss/token_loss.hpp"
#include "runtime/plugins/json_parameters.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace millrace::policy_loss {

namespace {

/// What a plugin's loss sees of a micro-batch, in host memory; kept until its backward pass.
struct host_batch {
  at::Tensor logp_new, logp_prox, logp_behav, advantages, mask; ///< fp64, mask u8
  std::vector<std::int32_t> cu_seqlens;

  [[nodiscard]] plugin::loss_inputs view() const {
    return {numbers(logp_new),   numbers(logp_prox), numbers(logp_behav),
            numbers(advantages), {mask.const_data_ptr<std::uint8_t>(), count(mask)},
            cu_seqlens};
  }
  static std::size_t count(const at::Tensor& t) { return static_cast<std::size_t>(t.numel()); }
  static std::span<const double> numbers(const at::Tensor& t) {
    return t.defined() ? std::span(t.const_data_ptr<double>(), count(t)) : std::span<const double>();
  }
};

class plugin_loss final : public token_loss {
public:
  plugin_loss(const plugins::registered<plugin::loss_factory>& r, param_reader& params)
    : token_loss(r.from.name, params), from_(r.from),
      loss_(plugins::make(r, params.rest(), params.where() + ".params")) {}

protected:
  [[nodiscard]] requirements method_needs() const override {
    return {.prox = loss_->needs_prox(), .behav = loss_->needs_behaviour(),
            .sequences_whole = loss_->looks_at_sequences()};
  }

  [[nodiscard]] term evaluate(batch& b) const override {
    auto seen = std::make_shared<host_batch>();
    auto valid = look(b, *seen);
    auto n = seen->logp_new.numel();
    auto value = at::zeros({n}, at::kDouble), gradient = at::zeros({n}, at::kDouble);
    auto keep = at::ones({n}, at::kByte), clipped = at::zeros({n}, at::kByte);
    auto size = static_cast<std::size_t>(n);
    plugins::guarded(from_, "compute() threw", [&] {
      loss_->compute(seen->view(), {{value.mutable_data_ptr<double>(), size},
                                    {gradient.mutable_data_ptr<double>(), size},
                                    {keep.mutable_data_ptr<std::uint8_t>(), size},
                                    {clipped.mutable_data_ptr<std::uint8_t>(), size}});
    });
    auto device = b.logp_new().device();
    term t;
    // Its value is the plugin's; what comes back to `own` is Σ upstream · d value, by the hook.
    auto own = at::where(valid, b.logp_new(), 0.0);
    t.value = value.to(device) + (own - own.detach());
    if (own.requires_grad())
      own.register_hook([this_loss = loss_, from = from_, seen, gradient](const at::Tensor& g) {
        return pulled_back(*this_loss, from, *seen, gradient, g);
      });
    t.keep = keep.to(device).to(at::kBool);
    t.clipped_high = clipped.to(device).to(at::kBool);
    t.clipped_low = at::zeros_like(t.clipped_high);
    return t;
  }

private:
  /// Fills `seen`; the tokens that count, as bool on the batch's device.
  at::Tensor look(batch& b, host_batch& seen) const {
    at::NoGradGuard no_grad;
    // Forming the ratios is what finds values that are not finite.
    static_cast<void>(b.clean_logp_new());
    if (loss_->needs_prox())
      static_cast<void>(b.log_new_over_prox());
    if (loss_->needs_behaviour())
      static_cast<void>(b.log_new_over_behav());
    auto valid = b.mask().logical_and(b.nonfinite().logical_not());
    auto host = [&](const at::Tensor& t) {
      return at::where(valid, t.detach().to(at::kDouble), 0.0).cpu().contiguous();
    };
    seen.logp_new = host(b.logp_new());
    if (loss_->needs_prox())
      seen.logp_prox = host(b.logp_prox());
    if (loss_->needs_behaviour())
      seen.logp_behav = host(b.logp_behav());
    seen.advantages = host(b.advantages());
    seen.mask = valid.to(at::kByte).cpu().contiguous();
    for (auto at : b.where().offsets())
      seen.cu_seqlens.push_back(static_cast<std::int32_t>(at));
    return valid;
  }

  static at::Tensor pulled_back(const plugin::loss& l, const plugins::origin& from,
                                const host_batch& seen, const at::Tensor& gradient,
                                const at::Tensor& g) {
    auto upstream = g.to(at::kDouble).cpu().contiguous();
    auto into = at::zeros_like(upstream);
    auto size = host_batch::count(upstream);
    bool own = plugins::guarded(from, "backward() threw", [&] {
      return l.backward(seen.view(), {upstream.const_data_ptr<double>(), size},
                        {into.mutable_data_ptr<double>(), size});
    });
    return (own ? into : upstream * gradient).to(g.options());
  }

  plugins::origin from_;
  std::shared_ptr<plugin::loss> loss_;
};

} // namespace

std::unique_ptr<loss> make_plugin_loss(const plugins::registered<plugin::loss_factory>& r,
                                       param_reader& params) {
  return std::make_unique<plugin_loss>(r, params);
}

loss_registry& known_losses() {
  static loss_registry all = builtin_losses();
  return all;
}

advantage_registry& known_advantages() {
  static advantage_registry all = builtin_advantages();
  return all;
}

void add_plugin(const plugins::loaded_plugin& from) {
  for (const auto& [name, r] : from.losses)
    known_losses().add(name, [r](param_reader& p) { return make_plugin_loss(r, p); });
  for (const auto& [name, r] : from.advantages)
    known_advantages().add(name, [r](param_reader& p) { return make_plugin_advantage(r, p); });
}

} // namespace millrace::policy_loss
