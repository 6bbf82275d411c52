#define MILLRACE_KERNELS kernels_avx512_vnni
#define MILLRACE_KERNELS_NAME "avx512_vnni"
#include "runtime/model/kernels_body.hpp"
