#include "policy_loss/layout.hpp"

#include "runtime/error.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/zeros.h>

#include <sstream>

namespace millrace::policy_loss {

namespace {

std::string shape_text(const at::Tensor& t) {
  std::ostringstream text;
  text << t.sizes();
  return text.str();
}

} // namespace

layout::layout(const at::Tensor& per_token, const std::vector<std::int32_t>& cu_seqlens)
  : shape_(per_token.sizes().vec()), tokens_(per_token.numel()) {
  if (cu_seqlens.empty()) {
    ensure(per_token.dim() == 2, [&] {
      return "without cu_seqlens per-token tensors are [B, T], got " + shape_text(per_token);
    });
    sequences_ = shape_[0];
    offsets_.reserve(static_cast<std::size_t>(sequences_) + 1);
    for (std::int64_t s = 0; s <= sequences_; ++s)
      offsets_.push_back(s * shape_[1]);
  } else {
    ensure(per_token.dim() == 1, [&] {
      return "with cu_seqlens per-token tensors are [N], got " + shape_text(per_token);
    });
    sequences_ = static_cast<std::int64_t>(cu_seqlens.size()) - 1;
    offsets_.assign(cu_seqlens.begin(), cu_seqlens.end());
    ensure(offsets_.front() == 0 && offsets_.back() == tokens_, [&] {
      return "cu_seqlens must go from 0 to " + std::to_string(tokens_) + ", goes from "
             + std::to_string(offsets_.front()) + " to " + std::to_string(offsets_.back());
    });
  }
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(sequences_));
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    lengths[s] = offsets_[s + 1] - offsets_[s];
    ensure(lengths[s] >= 0, [&] { return "cu_seqlens falls at entry " + std::to_string(s + 1); });
  }
  auto repeats = at::from_blob(lengths.data(), {sequences_}, at::kLong).to(per_token.device());
  auto ids = at::arange(sequences_, at::TensorOptions(at::kLong).device(per_token.device()));
  // The output size is known here; passing it spares a device-to-host transfer.
  sequence_ = at::repeat_interleave(ids, repeats, 0, tokens_);
}

at::Tensor layout::flat(const at::Tensor& per_token, at::ScalarType type, const char* name) const {
  ensure(per_token.sizes().vec() == shape_, [&] {
    std::ostringstream text;
    text << name << " has shape " << per_token.sizes() << ", expected " << at::IntArrayRef(shape_);
    return text.str();
  });
  return per_token.reshape({tokens_}).to(type);
}

at::Tensor layout::restored(const at::Tensor& flat) const {
  return flat.reshape(shape_);
}

at::Tensor layout::sum(const at::Tensor& values) const {
  return at::zeros({sequences_}, values.options()).index_add(0, sequence_, values);
}

at::Tensor layout::to_tokens(const at::Tensor& per_sequence) const {
  return per_sequence.index_select(0, sequence_);
}

at::Tensor flat_mask(const layout& where, const at::Tensor& mask, const at::Tensor& like) {
  if (!mask.defined())
    return at::ones({where.tokens()}, at::TensorOptions(at::kBool).device(like.device()));
  return where.flat(mask.scalar_type() == at::kBool ? mask : mask.ne(0), at::kBool, "mask");
}

} // namespace millrace::policy_loss
