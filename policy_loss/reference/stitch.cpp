#include "policy_loss/reference/stitch.hpp"

#include "runtime/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace millrace::policy_loss {

stitched stitch_by_version(const std::map<std::int64_t, at::Tensor>& by_version,
                           const at::Tensor& versions) {
  at::NoGradGuard no_grad;
  stitched result;
  result.logp = at::zeros(versions.sizes(), versions.options().dtype(at::kDouble));
  result.found = at::zeros_like(versions, versions.options().dtype(at::kBool));
  for (const auto& [version, row] : by_version) {
    ensure(row.sizes() == versions.sizes(), [&, v = version] {
      return "the row of version " + std::to_string(v) + " has " + std::to_string(row.numel())
             + " entries, versions " + std::to_string(versions.numel());
    });
    if (version < 0)
      continue;
    auto here = versions.eq(version);
    result.logp = at::where(here, row.detach().to(at::kDouble), result.logp);
    result.found = result.found.logical_or(here);
  }
  return result;
}

} // namespace millrace::policy_loss
