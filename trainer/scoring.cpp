#include "trainer/scoring.hpp"

#include "trainer/collectives.hpp"
#include "trainer/parallel_logprobs.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace millrace::trainer {

at::Tensor tensor_of(const std::vector<std::int64_t>& values, c10::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

at::Tensor tensor_of(const std::vector<std::int32_t>& values, c10::Device device) {
  return at::tensor(values, at::kInt).to(device);
}

at::Tensor tensor_of(const std::vector<float>& values, c10::Device device) {
  return at::tensor(values, at::kFloat).to(device);
}

model::packed_batch batch_of(const packed_sequences& packed, c10::Device device) {
  return {tensor_of(packed.tokens, device), tensor_of(packed.positions, device), packed.cu_seqlens,
          packed.prefixes};
}

policy_loss::token_logprobs_result score_tokens(const model::transformer& network,
                                                const packed_sequences& packed,
                                                double temperature) {
  const auto device = network.device();
  auto hidden = network.hidden(batch_of(packed, device))
                  .index_select(0, tensor_of(packed.rows, device));
  auto targets = tensor_of(packed.targets, device);
  if (const auto& group = network.group()) {
    auto own = model::slice_of(network.whole_config(), "lm_head.weight", group->rank, group->size);
    return parallel_token_logprobs(hidden, network.head_weight(), targets, temperature, own.begin,
                                   group);
  }
  return policy_loss::token_logprobs(hidden, network.head_weight(), targets,
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

partition batch_scorer::shares(std::span<const std::size_t> which) const {
  if (!data_ || data_->size() == 1)
    return {{which.begin(), which.end()}};
  partition runs;
  std::vector<std::int64_t> tokens;
  for (const auto& r : sibling_runs(sequences_, which)) {
    // A group is shared out whole only where that saves something.
    auto whole = share_prompts_ && r.prefix > 0;
    for (std::size_t i = 0; i < r.count; i += whole ? r.count : 1) {
      auto& members = runs.emplace_back();
      for (auto j = i; j < i + (whole ? r.count : 1); ++j)
        members.push_back(which[r.first + j]);
      tokens.push_back(whole ? r.packed_tokens
                             : static_cast<std::int64_t>(sequences_[members[0]].tokens.size()));
    }
  }
  partition out;
  for (const auto& part :
       balanced_parts(tokens, static_cast<std::size_t>(data_->size()), false)) {
    auto& members = out.emplace_back();
    for (auto u : part)
      members.insert(members.end(), runs[u].begin(), runs[u].end());
    std::sort(members.begin(), members.end());
  }
  return out;
}

partition batch_scorer::split_share(std::span<const std::size_t> which) const {
  if (!data_ || data_->size() == 1)
    return split(which);
  auto all = shares(which);
  std::size_t most = 1;
  for (const auto& part : all)
    most = std::max(most, split(part).size());
  return split(all[static_cast<std::size_t>(data_->rank())], most);
}

partition batch_scorer::split(std::span<const std::size_t> which, std::size_t at_least) const {
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
  for (const auto& part : micro_batches(units.lengths, micro_batch_tokens_, packing_, at_least)) {
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
  auto shared = data_ && data_->size() > 1;
  auto into = shared ? at::zeros_like(logp) : logp;
  for (const auto& part : split_share(which)) {
    auto scored = score_tokens(network, packed(part), temperature_).logp;
    into.index_copy_(0, layout_.places(part), scored.to(into.device()));
  }
  if (!shared)
    return;
  data_->all_reduce(into);
  auto places = layout_.places(which);
  logp.index_copy_(0, places, into.index_select(0, places));
}

} // namespace millrace::trainer
