#pragma once

#include "runtime/ids.hpp"
#include "runtime/tensor_view.hpp"

#include <memory>
#include <string>
#include <vector>

namespace millrace::model {
struct model_config;
}

namespace millrace {
struct settings;
}

namespace millrace::trainer {

class old_logit_worker;

/// The versions of an old-logit worker in a process of its own, as algorithm.snapshot limits them.
/// Each comes in from elsewhere: whoever fetches it fills staging(), and then keeps it. No torch in
/// sight.
class old_logit_versions {
public:
  /// `shape`: of the network that is trained.
  old_logit_versions(const settings& s, const model::model_config& shape);
  ~old_logit_versions();

  /// All parameters, fp32, by Hugging Face's names. The same memory for every version.
  [[nodiscard]] std::vector<tensor_view> staging() const;
  /// Staging holds all of `v`, which is younger than all before: from now on the worker may use it.
  /// False when versions are given up before their time: given_up() says why.
  bool keep(version v);
  [[nodiscard]] std::string given_up() const;
  /// What computes with them, on another thread than the one that fetches.
  [[nodiscard]] const std::shared_ptr<old_logit_worker>& worker() const;

private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

} // namespace millrace::trainer
