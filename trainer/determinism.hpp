#pragma once

namespace millrace::trainer {

/// From now on the whole process uses deterministic kernels only, and libtorch throws where it has
/// none. To be called before anything is computed on a CUDA device, and by one thread: it sets an
/// environment variable.
void compute_deterministically();

} // namespace millrace::trainer
