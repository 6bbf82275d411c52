#include "trainer/statistics.hpp"

namespace millrace::trainer {

std::map<std::string, double> step_statistics::values() const {
  auto count = [](std::int64_t n) { return static_cast<double>(n); };
  std::map<std::string, double> v{
    {"loss", loss},
    {"kl_loss", kl_loss},
    {"learning_rate", learning_rate},
    {"rollouts", count(rollouts)},
    {"groups", count(groups)},
    {"reward_mean", reward_mean},
    {"reward_std", reward_std},
    {"zero_variance_groups", count(zero_variance_groups)},
    {"advantage_abs_mean", advantage_abs_mean},
    {"trained_tokens", count(trained_tokens)},
    {"processed_tokens", count(processed_tokens)},
    {"micro_batches", count(micro_batches)},
    {"updates", count(updates)},
    {"skipped_updates", count(skipped_updates)},
    {"nonfinite_tokens", count(nonfinite_tokens)},
    {"grad_norm", grad_norm},
    {"clipped_updates", clipped_updates},
    {"clip_fraction_positive", clip_fraction_positive},
    {"clip_fraction_negative", clip_fraction_negative},
    {"mask_fraction", mask_fraction},
    {"entropy", entropy},
    {"top1_fraction", top1_fraction},
    {"ess", ess},
    {"kl_infer_train", kl_infer_train},
    {"kl_infer_train_k3", kl_infer_train_k3},
    {"max_abs_prob_diff", max_abs_prob_diff},
    {"kl_reference", kl_reference},
    {"value_loss", value_loss},
    {"value_mean", value_mean},
    {"value_clip_fraction", value_clip_fraction},
    {"explained_variance", explained_variance},
    {"critic_grad_norm", critic_grad_norm},
    {"critic_s", seconds.critic},
    {"staleness_mean", staleness_mean},
    {"staleness_max", count(staleness_max)},
    {"ewma_reset", ewma_reset ? 1.0 : 0.0},
    {"advantage_s", seconds.advantage},
    {"old_logits_s", seconds.old_logits},
    {"forward_backward_s", seconds.forward_backward},
    {"optimizer_s", seconds.optimizer},
    {"rank_wait_s", seconds.rank_wait},
    {"step_s", seconds.total},
    {"trainer_peak_rss_bytes", peak_rss_bytes},
  };
  std::int64_t served = 0;
  for (const auto& [route, tokens] : old_logits_served) {
    v["old_logits_" + route] = count(tokens);
    served += tokens;
  }
  for (auto route : names(old_logit_route{})) {
    auto tokens = old_logits_served.find(std::string(route));
    v["old_logits_share_" + std::string(route)]
      = tokens == old_logits_served.end() || served == 0 ? 0 : count(tokens->second) / count(served);
  }
  const auto& o = old_logits;
  auto path = seconds.old_logits + o.waited_s;
  v["old_logits_forwards"] = count(o.forwards);
  v["old_logits_tokens"] = count(o.tokens);
  v["old_logits_versions"] = count(o.versions);
  v["old_logits_device_bytes"] = count(o.device_bytes);
  v["old_logits_memory_bytes"] = count(o.memory_bytes);
  v["old_logits_disk_bytes"] = count(o.disk_bytes);
  v["old_logits_copying_s"] = o.copying_s;
  v["old_logits_hidden_s"] = o.hidden_s;
  v["old_logits_waited_s"] = o.waited_s;
  v["old_logits_hidden_share"] = o.hidden_s > 0 ? o.hidden_s / (o.hidden_s + path) : 0;
  return v;
}

} // namespace millrace::trainer
