// Weight sync from one process's GPU memory into another's over UCX (cuda_ipc on one machine): first
// that every value is right, then the time against a copy inside the GPU. Run by weightsync.sh.

#include "bench/measurement.hpp"
#include "test/weightsync/child_process.hpp"
#include "weightsync/convert.hpp"
#include "weightsync/cuda_device.hpp"
#include "weightsync/publisher.hpp"
#include "weightsync/pull.hpp"
#include "weightsync/stopwatch.hpp"
#include "weightsync/ucx_transport.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

using namespace millrace;
using namespace millrace::weightsync;

namespace {

constexpr double patience_s = 120;
constexpr int rounds = 4;
constexpr std::int64_t rows = 4096;
constexpr std::int64_t columns = 4096;

void check(cudaError_t error) {
  if (error != cudaSuccess)
    throw std::runtime_error(cudaGetErrorString(error));
}

float value_at(std::int32_t v, std::size_t tensor, std::int64_t i) {
  auto x = static_cast<std::uint32_t>(i) * 2654435761U + static_cast<std::uint32_t>(tensor) * 97U
           + static_cast<std::uint32_t>(v) * 40503U;
  return static_cast<float>(static_cast<std::int32_t>(x)) * 1e-11F;
}

// Matrices in GPU memory and, for f8, their scales.
class gpu_model {
public:
  gpu_model(std::size_t tensors, dtype type) {
    check(cudaSetDevice(0));
    for (std::size_t i = 0; i < tensors; ++i) {
      add("w" + std::to_string(i), type, {rows, columns});
      if (type == dtype::f8_e4m3)
        add(scale_name("w" + std::to_string(i)), dtype::f32, {rows});
    }
  }
  [[nodiscard]] const std::vector<tensor_view>& views() const { return views_; }

  void fill(std::int32_t v) {
    std::vector<float> host(rows * columns);
    for (std::size_t t = 0; t < views_.size(); ++t) {
      for (std::int64_t i = 0; i < rows * columns; ++i)
        host[static_cast<std::size_t>(i)] = value_at(v, t, i);
      check(cudaMemcpy(views_[t].data, host.data(), views_[t].bytes(), cudaMemcpyHostToDevice));
    }
  }

  template <class T>
  [[nodiscard]] std::vector<T> download(std::size_t view) const {
    std::vector<T> host(views_[view].bytes() / sizeof(T));
    check(cudaMemcpy(host.data(), views_[view].data, views_[view].bytes(),
                     cudaMemcpyDeviceToHost));
    return host;
  }

private:
  void add(std::string name, dtype type, tensor_shape shape) {
    tensor_view v{std::move(name), type, std::move(shape), nullptr, memory_kind::cuda};
    memory_.push_back(the_cuda_device().allocate(v.bytes()));
    v.data = memory_.back().get();
    views_.push_back(std::move(v));
  }
  std::vector<std::shared_ptr<std::byte[]>> memory_;
  std::vector<tensor_view> views_;
};

float decode_e4m3(std::uint8_t x) {
  int exponent = (x >> 3U) & 15;
  auto mantissa = static_cast<float>(x & 7U);
  auto magnitude = exponent == 0 ? std::ldexp(mantissa, -9)
                                 : std::ldexp(1 + mantissa / 8, exponent - 7);
  return (x & 128U) != 0 ? -magnitude : magnitude;
}

// Compares everything with what the trainer must have had, value by value.
std::string find_fault(const gpu_model& model, dtype type, std::size_t tensors, std::int32_t v) {
  for (std::size_t t = 0; t < tensors; ++t) {
    auto where = [&](std::int64_t i) {
      return "tensor " + std::to_string(t) + " element " + std::to_string(i);
    };
    if (type == dtype::f8_e4m3) {
      auto got = model.download<std::uint8_t>(2 * t);
      auto scales = model.download<float>(2 * t + 1);
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        auto x = value_at(v, t, i);
        auto scale = scales[static_cast<std::size_t>(i / columns)];
        auto y = decode_e4m3(got[static_cast<std::size_t>(i)]) * scale;
        // Half a step: 2^-4 of a normal number, 2^-10 of the scale below.
        if (!(std::abs(x - y) <= std::max(std::abs(x) * 0.0626F, scale * 0.00098F)))
          return where(i);
      }
    } else if (type == dtype::bf16) {
      auto got = model.download<std::uint16_t>(t);
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        auto x = value_at(v, t, i);
        std::uint16_t expected = 0;
        f32_to_bf16(&x, &expected, 1);
        if (got[static_cast<std::size_t>(i)] != expected)
          return where(i);
      }
    } else {
      auto got = model.download<float>(t);
      for (std::int64_t i = 0; i < rows * columns; ++i)
        if (got[static_cast<std::size_t>(i)] != value_at(v, t, i))
          return where(i);
    }
  }
  return {};
}

void run_trainer(channel& line, std::size_t tensors) {
  gpu_model weights(tensors, dtype::f32);
  ucx_transport carrier;
  if (!carrier.supports(memory_kind::cuda))
    throw std::runtime_error("this UCX was built without CUDA");
  publisher source(carrier, replicated(weights.views()), {});
  for (std::int32_t v = 0; line.receive(patience_s); ++v) {
    weights.fill(v);
    stopwatch watch;
    auto m = source.publish({v}, weights.views(), v);
    std::printf("  publish %d: %.4f s\n", v, watch.seconds());
    std::fflush(stdout);
    line.send(to_binary(*m));
  }
}

double device_copy_s(std::size_t bytes) {
  auto a = the_cuda_device().allocate(bytes);
  auto b = the_cuda_device().allocate(bytes);
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    stopwatch watch;
    check(cudaMemcpy(b.get(), a.get(), bytes, cudaMemcpyDeviceToDevice));
    check(cudaDeviceSynchronize());
    times.push_back(watch.seconds());
  }
  return *std::min_element(times.begin(), times.end());
}

// Whether all versions were right.
bool receive(channel& line, std::size_t tensors, dtype type, const char* name) {
  gpu_model staging(tensors, type);
  ucx_transport carrier;
  layout target;
  for (std::size_t i = 0; i < tensors; ++i) {
    auto tensor = "w" + std::to_string(i);
    target.push_back({tensor, {rows, columns}, whole({rows, columns}), tensor, 0});
  }
  puller sink(carrier, staging.views(), target);
  auto bound = device_copy_s(tensors * rows * columns * 4);
  bool right = true;
  for (int round = 0; round < rounds; ++round) {
    line.send("publish");
    auto bytes = line.receive(patience_s);
    if (!bytes)
      throw std::runtime_error("the trainer process doesn't answer");
    auto m = manifest_from_binary(*bytes);
    auto report = sink.pull(m, {.timeout_s = patience_s});
    auto fault = report.ready() ? find_fault(staging, type, tensors, m.number.value)
                                : report.error;
    std::printf("%-9s v%d: %s; wire %.4f verify %.4f load %.4f quantise %.4f total %.4f s, "
                "%.1f GB/s, %.2f of a copy in the GPU\n",
                name, m.number.value, fault.empty() ? "right" : ("WRONG: " + fault).c_str(),
                report.wire_s, report.verify_s, report.load_s, report.quantise_s, report.total_s,
                static_cast<double>(report.bytes) / 1e9 / report.total_s, bound / report.total_s);
    std::fflush(stdout);
    right &= fault.empty();
  }
  return right;
}

} // namespace

int main(int argc, char** argv) {
  auto tensors = static_cast<std::size_t>(argc > 1 ? std::atoi(argv[1]) : 16);
  bool right = true;
  // Processes of their own for each type: CUDA doesn't survive a fork.
  for (auto [type, name] : {std::pair{dtype::f32, "f32"}, std::pair{dtype::bf16, "bf16"},
                            std::pair{dtype::f8_e4m3, "f8_e4m3"}}) {
    child_process trainer([=](channel& line) { run_trainer(line, tensors); });
    child_process receiver([=, type = type, name = name](channel& line) {
      if (!receive(line, tensors, type, name))
        throw std::runtime_error("wrong values");
    });
    for (int round = 0; round < rounds && receiver.line().receive(patience_s); ++round) {
      trainer.line().send("publish");
      if (auto bytes = trainer.line().receive(patience_s))
        receiver.line().send(*bytes);
      else
        break;
    }
    right &= receiver.joined(patience_s);
  }
  std::printf("%s\n", right ? "all right" : "FAILED");
  return right ? 0 : 1;
}
