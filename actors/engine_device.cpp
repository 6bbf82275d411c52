#include "actors/engine_device.hpp"

#include "runtime/model/device_decoder.hpp"
#include "runtime/model/torch_device.hpp"

namespace millrace {

void place_engine(generation::engine_options& options, compute_device device, int index,
                  const std::string& where) {
  // The CPU's own decoder is faster there than libtorch.
  if (device == compute_device::cpu)
    options.decoder = {};
  else
    options.decoder = model::decoders_on(model::torch_device(device, index, where));
}

} // namespace millrace
