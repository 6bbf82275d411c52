#define MILLRACE_KERNELS kernels_avx512
#define MILLRACE_KERNELS_NAME "avx512"
#include "runtime/model/kernels_body.hpp"
