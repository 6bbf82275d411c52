#pragma once

#include "runtime/ids.hpp"

#include <filesystem>
#include <memory>

namespace millrace::trainer {

/// All that policy::save() writes, copied: it stays as it is while training goes on.
class policy_snapshot {
public:
  struct parts;
  explicit policy_snapshot(std::shared_ptr<const parts> p) : parts_(std::move(p)) {}

  [[nodiscard]] version at() const;
  [[nodiscard]] std::size_t bytes() const;
  /// The same files as policy::save(). \throws user_error when the disk refuses
  void write(const std::filesystem::path& folder) const;

private:
  std::shared_ptr<const parts> parts_;
};

} // namespace millrace::trainer
