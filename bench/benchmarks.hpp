#pragma once

#include "bench/measurement.hpp"

#include <string>
#include <vector>

namespace millrace::bench {

struct options {
  bool quick = false; ///< small sizes and few rounds: to see that it works
  std::string model;  ///< folder of the model that `generate` uses; empty: random weights
};

struct benchmark {
  const char* name;
  const char* what;
  measurements (*run)(const options&);
};

/// All that this build has.
const std::vector<benchmark>& benchmarks();

measurements generate(const options& how);
measurements introspection(const options& how);
measurements loss(const options& how);
measurements old_logits(const options& how);
measurements stream(const options& how);
measurements train(const options& how);
measurements weightsync(const options& how);

} // namespace millrace::bench
