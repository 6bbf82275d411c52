#define MILLRACE_KERNELS kernels_generic
#define MILLRACE_KERNELS_NAME "generic"
#include "runtime/model/kernels_body.hpp"
