// The kernels themselves: included by one source file per instruction set, which defines
// MILLRACE_KERNELS (the table's name) and is compiled with that set's flags. Nothing from the
// standard library's templates may be used in these headers: the linker could then pick a copy
// compiled for instructions that the machine lacks.

#include "runtime/model/kernels_attention.hpp"
#include "runtime/model/kernels_gemm.hpp"
#include "runtime/model/kernels_narrow.hpp"
#include "runtime/model/kernels_pack.hpp"
#include "runtime/model/kernels_rows.hpp"
#include "runtime/model/kernels_sampling.hpp"

namespace millrace::model {

extern const kernel_table MILLRACE_KERNELS;
const kernel_table MILLRACE_KERNELS{
  .name = MILLRACE_KERNELS_NAME,
  .gemm = gemm,
  .pack = pack,
  .pack_columns = pack_columns,
  .gemm_bf16 = narrow_gemm<bf16_product>,
  .gemm_i8 = narrow_gemm<i8_product>,
  .round_rows = round_rows,
  .quantise_rows = quantise_rows,
  .pack_lanes = pack_lanes,
  .rms_norm = rms_norm,
  .rms_norm_backward = rms_norm_backward,
  .rope = rope,
  .attend = attend,
  .softmax = softmax,
  .softmax_again = softmax_again,
  .softmax_backward = softmax_backward,
  .dot = dot,
  .swiglu = swiglu,
  .swiglu_backward = swiglu_backward,
  .maximum = maximum,
  .exponentials = exponentials,
};

} // namespace millrace::model
