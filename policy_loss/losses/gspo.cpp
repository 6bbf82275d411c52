#include "policy_loss/clip.hpp"
#include "policy_loss/losses/all.hpp"

namespace millrace::policy_loss::losses {

namespace {

/// GSPO (2507.18071): PPO's clip on one ratio per sequence, the geometric mean of its tokens',
///   s = exp(mean_t log r1),  ppo_clip(s)
/// with gradient through s to all tokens. The paper's aggregation is seq_mean_token_mean, its clip
/// 3e-4 and 4e-4. Named result: seq_ratio [S].
class gspo_loss : public token_loss {
public:
  explicit gspo_loss(param_reader& params)
    : token_loss("gspo", params), clip_(clip_options::read_with_dual(params)) {}

protected:
  [[nodiscard]] requirements method_needs() const override {
    return {.prox = true, .sequences_whole = true};
  }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    t.log_r1 = b.log_new_over_prox();
    auto present = b.kept().to(at::kDouble);
    auto mean = b.where().sum(t.log_r1 * present) / b.where().sum(present).clamp_min(1);
    auto ratio = b.exp(mean);
    apply_ppo_clip(t, b.where().to_tokens(ratio), b.advantages(), clip_);
    t.named_sequences.emplace("seq_ratio", ratio);
    return t;
  }

private:
  clip_options clip_;
};

} // namespace

std::unique_ptr<loss> gspo(param_reader& params) {
  return std::make_unique<gspo_loss>(params);
}

} // namespace millrace::policy_loss::losses
