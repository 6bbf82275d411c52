#include "trainer/scoring.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

namespace millrace::trainer {

at::Tensor tensor_of(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

at::Tensor tensor_of(const std::vector<std::int32_t>& values) {
  return at::tensor(values, at::kInt);
}

at::Tensor tensor_of(const std::vector<float>& values) { return at::tensor(values, at::kFloat); }

policy_loss::token_logprobs_result score_tokens(const model::transformer& network,
                                                const packed_sequences& packed,
                                                double temperature) {
  auto hidden = network.hidden({tensor_of(packed.tokens), tensor_of(packed.positions),
                                packed.cu_seqlens, packed.prefixes});
  return policy_loss::token_logprobs(hidden.index_select(0, tensor_of(packed.rows)),
                                     network.head_weight(), tensor_of(packed.targets),
                                     {.temperature = temperature});
}

token_layout::token_layout(std::span<const training_sequence> sequences) : cu_seqlens{0} {
  for (const auto& s : sequences)
    cu_seqlens.push_back(cu_seqlens.back() + s.sampled());
}

at::Tensor token_layout::places(std::span<const std::size_t> which) const {
  std::vector<std::int64_t> places;
  for (auto s : which)
    for (auto i = cu_seqlens[s]; i < cu_seqlens[s + 1]; ++i)
      places.push_back(i);
  return tensor_of(places);
}

partition batch_scorer::split(std::span<const std::size_t> which) const {
  std::vector<std::size_t> used;
  for (auto s : which)
    if (layout_.cu_seqlens[s + 1] > layout_.cu_seqlens[s])
      used.push_back(s);
  packing_units units;
  if (share_prompts_)
    units = units_of(sequences_, used, micro_batch_tokens_);
  else
    for (std::size_t i = 0; i < used.size(); ++i) {
      units.members.push_back({i});
      units.lengths.push_back(static_cast<std::int64_t>(sequences_[used[i]].tokens.size()));
    }
  partition parts;
  for (const auto& part : micro_batches(units.lengths, micro_batch_tokens_, packing_)) {
    auto& members = parts.emplace_back();
    for (auto u : part)
      for (auto i : units.members[u])
        members.push_back(used[i]);
  }
  return parts;
}

void batch_scorer::fill(at::Tensor& logp, const model::transformer& network,
                        std::span<const std::size_t> which) const {
  at::NoGradGuard no_grad;
  for (const auto& part : split(which))
    logp.index_copy_(0, layout_.places(part),
                     score_tokens(network, packed(part), temperature_).logp);
}

} // namespace millrace::trainer
