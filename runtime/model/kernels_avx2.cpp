#define MILLRACE_KERNELS kernels_avx2
#define MILLRACE_KERNELS_NAME "avx2"
#include "runtime/model/kernels_body.hpp"
