#pragma once

#include "model_fixture.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/device_decoder.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace millrace::test {

/// Weights in fp32, in host memory of their own.
struct weights {
  std::vector<std::vector<float>> memory;
  std::vector<tensor_view> views;

  weights(const model::model_config& config, std::uint64_t seed) {
    for (const auto& p : model::parameter_shapes(config)) {
      tensor_view v{p.name, dtype::f32, p.shape, nullptr};
      memory.emplace_back(static_cast<std::size_t>(v.elements()));
      v.data = reinterpret_cast<std::byte*>(memory.back().data());
      views.push_back(std::move(v));
    }
    model::initialise(config, views, seed);
    random_stream draws(seed, 1);
    for (const auto& v : views) // norms and biases that do something
      if (v.shape.size() == 1)
        for (std::int64_t i = 0; i < v.elements(); ++i)
          reinterpret_cast<float*>(v.data)[i] += 0.1F * draws.normal();
  }
};

inline constexpr std::int32_t context = 90, pool = 40; ///< tokens of a sequence, blocks of them all

/// The decoder for devices, on the CPU device.
inline std::unique_ptr<model::decoder> device_decoder_of(const model::model_config& config,
                                                         dtype type) {
  return model::make_device_decoder(c10::kCPU, config, {pool, context, 1, type});
}

} // namespace millrace::test
