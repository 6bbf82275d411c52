#include "trainer/determinism.hpp"

#include <ATen/Context.h>

#include <cstdlib>

namespace millrace::trainer {

void compute_deterministically() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0); // or cuBLAS promises nothing
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
}

} // namespace millrace::trainer
