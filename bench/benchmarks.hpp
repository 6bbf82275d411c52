#pragma once

#include "bench/measurement.hpp"

#include <vector>

namespace millrace::bench {

struct options {
  bool quick = false; ///< small sizes and few rounds: to see that it works
};

struct benchmark {
  const char* name;
  const char* what;
  measurements (*run)(const options&);
};

/// All that this build has.
const std::vector<benchmark>& benchmarks();

measurements introspection(const options& how);
measurements loss(const options& how);
measurements stream(const options& how);
measurements weightsync(const options& how);

} // namespace millrace::bench
