#include "trainer/old_logit_versions.hpp"

#include "runtime/config/settings.hpp"
#include "runtime/model/transformer.hpp"
#include "trainer/determinism.hpp"
#include "trainer/old_logit_exact.hpp"
#include "trainer/old_logit_worker.hpp"
#include "trainer/version_ring.hpp"

#include <ATen/Parallel.h>

namespace millrace::trainer {

struct old_logit_versions::parts {
  model::transformer staging;
  std::shared_ptr<version_ring> ring;
  std::shared_ptr<old_logit_worker> worker;
  int threads = 1;
};

old_logit_versions::old_logit_versions(const settings& s, const model::model_config& shape) {
  if (s.deterministic)
    compute_deterministically();
  model::transformer staging(shape);
  staging.requires_gradient(false);
  auto ring = std::make_shared<version_ring>(kept_version_limits(s));
  auto worker = std::make_shared<old_logit_worker>(s, shape, ring);
  parts_ = std::make_unique<parts>(parts{std::move(staging), std::move(ring), std::move(worker),
                                         s.algorithm.dedicated.threads});
}

old_logit_versions::~old_logit_versions() = default;

std::vector<tensor_view> old_logit_versions::staging() const { return parts_->staging.views(); }

bool old_logit_versions::keep(version v) {
  at::set_num_threads(parts_->threads); // of whoever fetches
  parts_->ring->put(v, parts_->staging.flat());
  return given_up().empty();
}

std::string old_logit_versions::given_up() const { return parts_->ring->given_up(); }

const std::shared_ptr<old_logit_worker>& old_logit_versions::worker() const {
  return parts_->worker;
}

} // namespace millrace::trainer
