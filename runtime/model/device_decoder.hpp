#pragma once

#include "runtime/model/decoder.hpp"

#include <c10/core/Device.h>

#include <memory>

namespace millrace::model {

/// A decoder that computes on `device` by libtorch's operations, the same on every kind of device.
/// `options.weights` is f32 (computed in fp32), bf16, or f8_e4m3 (products of layers in E4M3 with a
/// scale for each row of weights and activations, everything between them in bf16). The residual
/// stream, norms, rotation and softmax are fp32; the cache has the type of computing. Weights are
/// staged, and current, on the device. Unlike the CPU's decoder, the last bits of a number depend on
/// what is computed beside it.
/// Computes on the calling thread's current stream: on a GPU that is the legacy default stream, which
/// all threads of a process share. A trainer on the same GPU in the same process thus takes turns
/// with it, kernel by kernel, and waiting for one's own waits for the other's: right, but a decode
/// step behind a training step is as late as that is long. A stream of its own would need events
/// around staging and caching allocations; on two GPUs nothing is shared.
/// Throws user_error when memory cannot be had there, or the device can't do E4M3's products.
std::unique_ptr<decoder> make_device_decoder(c10::Device device, const model_config& config,
                                             const decoder_options& options);

/// The above as engines take it.
decoder_factory decoders_on(c10::Device device);

} // namespace millrace::model
