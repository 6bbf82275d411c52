#include "runtime/model/kernels.hpp"

#include <cstdlib>
#include <string_view>

namespace millrace::model {

extern const kernel_table kernels_generic;
#if defined(__x86_64__)
extern const kernel_table kernels_avx2;
extern const kernel_table kernels_avx512;
extern const kernel_table kernels_avx512_vnni;
#endif

const kernel_table* kernels_named(const char* name) {
  const std::string_view wanted = name;
#if defined(__x86_64__)
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
                      && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (wanted == "avx512_vnni" && avx512 && __builtin_cpu_supports("avx512vnni")
      && __builtin_cpu_supports("avx512bf16"))
    return &kernels_avx512_vnni;
  if (wanted == "avx512" && avx512)
    return &kernels_avx512;
  if (wanted == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return &kernels_avx2;
#endif
  return wanted == "generic" ? &kernels_generic : nullptr;
}

const kernel_table& kernels() {
  static const kernel_table& best = [] () -> const kernel_table& {
    // For comparing machines: a cluster of mixed machines samples the same only with one table.
    if (const char* forced = std::getenv("MILLRACE_KERNELS"))
      if (const auto* table = kernels_named(forced))
        return *table;
    for (const char* name : {"avx512_vnni", "avx512", "avx2"})
      if (const auto* table = kernels_named(name))
        return *table;
    return kernels_generic;
  }();
  return best;
}

} // namespace millrace::model
