#include "runtime/model/weight_transfer.hpp"

#include "runtime/error.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/device_weights.hpp"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace millrace::model {
namespace {

/// Host memory that a checkpoint's parts pass through.
constexpr std::size_t part_bytes = std::size_t{1} << 30;

using views_by_name = std::map<std::string_view, const tensor_view*>;

views_by_name by_name(std::span<const tensor_view> all) {
  views_by_name out;
  for (const auto& t : all)
    out[t.name] = &t;
  return out;
}

const tensor_view* scales_of(const tensor_view& v, const views_by_name& all) {
  const auto at = all.find(v.name + "_scale");
  return at == all.end() ? nullptr : at->second;
}

bool is_scale(const tensor_view& v, const views_by_name& all) {
  constexpr std::string_view end = "_scale";
  const std::string_view name = v.name;
  return name.ends_with(end) && all.contains(name.substr(0, name.size() - end.size()));
}

void transfer(const tensor_view& from, const tensor_view& to, const tensor_view* scales) {
  const auto source = tensor_of(from);
  if (to.type != dtype::f8_e4m3) {
    tensor_of(to).copy_(source);
    return;
  }
  ensure(scales != nullptr, [&] { return to.name + " has no scales beside it"; });
  auto target = tensor_of(to);
  const auto [values, row_scales] = quantised_rows(source.to(target.device()));
  target.copy_(values.view(at::kByte));
  tensor_of(*scales).copy_(row_scales.squeeze(1));
}

} // namespace

at::Tensor tensor_of(const tensor_view& v) {
  const auto type = [&] {
    switch (v.type) {
      case dtype::f32: return at::kFloat;
      case dtype::bf16: return at::kBFloat16;
      case dtype::f16: return at::kHalf;
      case dtype::f8_e4m3: return at::kByte;
      default: break;
    }
    throw invariant_error(v.name + ": weights of this type are not copied between devices");
  }();
  const auto kind = v.memory == memory_kind::cuda ? at::kCUDA : at::kCPU;
  return at::from_blob(v.data, v.shape, at::TensorOptions(kind).dtype(type));
}

void transfer_weights(std::span<const tensor_view> from, std::span<const tensor_view> to) {
  const c10::InferenceMode guard;
  const auto sources = by_name(from), targets = by_name(to);
  for (const auto& t : to) {
    if (is_scale(t, targets))
      continue;
    const auto source = sources.find(t.name);
    ensure(source != sources.end() && source->second->shape == t.shape,
           [&] { return "no tensor to copy " + t.name + " from"; });
    transfer(*source->second, t, scales_of(t, targets));
  }
}

void load_weights(const std::filesystem::path& folder,
                  const std::vector<tensor_view>& parameters) {
  const bool plain = std::all_of(parameters.begin(), parameters.end(), [](const auto& p) {
    return p.memory == memory_kind::host && p.type != dtype::f8_e4m3;
  });
  if (plain) {
    load_checkpoint(folder, parameters);
    return;
  }
  const auto all = by_name(parameters);
  std::vector<std::vector<std::byte>> memory;
  std::vector<tensor_view> here, there;
  std::size_t bytes = 0;
  const auto pass_on = [&] {
    load_checkpoint(folder, here);
    transfer_weights(here, there);
    memory.clear();
    here.clear();
    there.clear();
    bytes = 0;
  };
  for (const auto& p : parameters) {
    if (is_scale(p, all))
      continue;
    auto v = p;
    v.memory = memory_kind::host;
    if (v.type == dtype::f8_e4m3)
      v.type = dtype::f32;
    memory.emplace_back(v.bytes());
    v.data = memory.back().data();
    here.push_back(std::move(v));
    there.push_back(p);
    if (const auto* scales = scales_of(p, all))
      there.push_back(*scales);
    if ((bytes += here.back().bytes()) >= part_bytes)
      pass_on();
  }
  if (!here.empty())
    pass_on();
}

} // namespace millrace::model
