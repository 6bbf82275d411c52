#include "policy_loss/loss.hpp"

#include "policy_loss/aggregate.hpp"
#include "policy_loss/layout.hpp"
#include "policy_loss/losses/all.hpp"
#include "policy_loss/other_names.hpp"

#include <ATen/ops/stack.h>

namespace millrace::policy_loss {

namespace {

std::optional<std::int64_t> sum_if_known(const std::optional<std::int64_t>& a,
                                         const std::optional<std::int64_t>& b) {
  return a && b ? std::optional(*a + *b) : std::nullopt;
}

loss_registry make_builtin() {
  loss_registry result;
  result.add("ppo_clip", losses::ppo_clip);
  result.add("decoupled_ppo", losses::decoupled_ppo);
  result.add("hilton_decoupled", losses::hilton_decoupled);
  result.add("aipo", losses::aipo);
  result.add("aipo_clamped_ratio", losses::aipo_clamped_ratio);
  result.add("mis_decoupled", losses::mis_decoupled);
  result.add("proxy_interp", losses::proxy_interp);
  result.add("tis_ppo", losses::tis_ppo);
  result.add("cispo", losses::cispo);
  result.add("gspo", losses::gspo);
  result.add("topr", losses::topr);
  result.add("m2po", losses::m2po);
  result.add("vespo", losses::vespo);
  result.add("gppo", losses::gppo);
  result.add("minirl", losses::minirl);
  result.add("kl_in_loss", losses::kl_in_loss);
  return result;
}

} // namespace

counts operator+(const counts& a, const counts& b) {
  return {a.tokens + b.tokens, a.sequences + b.sequences, a.batch + b.batch,
          sum_if_known(a.kept_tokens, b.kept_tokens),
          sum_if_known(a.kept_sequences, b.kept_sequences)};
}

const loss_registry& builtin_losses() {
  static const loss_registry known = make_builtin();
  return known;
}

std::unique_ptr<loss> make_loss(std::string_view name, const nlohmann::json& params,
                                const loss_registry& known, std::string_view where) {
  if (const auto instead = loss_called(name); !instead.empty() && !known.knows(name))
    throw user_error(std::string(where) + ": there is no loss \"" + std::string(name) + "\": "
                     + std::string(instead));
  return known.make(name, params, where);
}

counts count(const inputs& in) {
  layout where{in.logp_new, in.cu_seqlens};
  auto mask = flat_mask(where, in.mask, in.logp_new);
  auto counted = count_on_device(where, mask, mask);
  auto host = at::stack({counted.tokens, counted.sequences}).cpu();
  const auto* values = host.const_data_ptr<double>();
  return {static_cast<std::int64_t>(values[0]), static_cast<std::int64_t>(values[1]),
          where.sequences(), std::nullopt, std::nullopt};
}

} // namespace millrace::policy_loss
