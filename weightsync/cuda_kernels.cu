#include "weightsync/cuda_kernels.hpp"
#include "weightsync/xxh3_lanes.hpp"

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

namespace millrace::weightsync::cuda {

namespace {

const cudaStream_t stream = cudaStreamPerThread;
constexpr unsigned threads = 256;
constexpr float largest_f8 = 448.0F;
constexpr float largest_i8 = 127.0F;
constexpr float smallest_scaled = 1e-30F; // as in convert.hpp

// An array on the GPU for the time of a call.
template <class T>
class device_array {
public:
  device_array(const T* host, std::size_t n) {
    error = cudaMallocAsync(reinterpret_cast<void**>(&data), n * sizeof(T), stream);
    if (error == cudaSuccess && host != nullptr)
      error = cudaMemcpyAsync(data, host, n * sizeof(T), cudaMemcpyHostToDevice, stream);
  }
  ~device_array() {
    if (data != nullptr)
      cudaFreeAsync(data, stream);
  }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;

  T* data = nullptr;
  cudaError_t error;
};

const char* finish(cudaError_t error) {
  if (error == cudaSuccess)
    error = cudaGetLastError();
  if (error == cudaSuccess)
    error = cudaStreamSynchronize(stream);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

__device__ float load(const unsigned char* from, number type, std::int64_t i, float scale) {
  switch (type) {
    case number::f32: return reinterpret_cast<const float*>(from)[i];
    case number::bf16: return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(from)[i]);
    default: return static_cast<float>(reinterpret_cast<const signed char*>(from)[i]) * scale;
  }
}

__device__ void store(unsigned char* to, number type, std::int64_t i, float x, float inverse) {
  switch (type) {
    case number::f32: reinterpret_cast<float*>(to)[i] = x; break;
    case number::bf16: reinterpret_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(x); break;
    case number::f8_e4m3: to[i] = __nv_cvt_float_to_fp8(x * inverse, __NV_SATFINITE, __NV_E4M3); break;
    default:
      to[i] = static_cast<unsigned char>(static_cast<signed char>(
        rintf(fminf(fmaxf(x * inverse, -largest_i8), largest_i8))));
  }
}

__device__ void copy_plain(const copy_task& t, std::int64_t from, std::int64_t to) {
  switch (t.from_type) {
    case number::bytes1:
    case number::i8:
    case number::f8_e4m3: t.to[to] = t.from[from]; break;
    case number::bytes2:
    case number::bf16:
      reinterpret_cast<std::uint16_t*>(t.to)[to]
        = reinterpret_cast<const std::uint16_t*>(t.from)[from];
      break;
    case number::bytes8:
      reinterpret_cast<std::uint64_t*>(t.to)[to]
        = reinterpret_cast<const std::uint64_t*>(t.from)[from];
      break;
    default:
      reinterpret_cast<std::uint32_t*>(t.to)[to]
        = reinterpret_cast<const std::uint32_t*>(t.from)[from];
  }
}

__device__ std::int64_t bytes_of(number type) {
  switch (type) {
    case number::f32:
    case number::bytes4: return 4;
    case number::bf16:
    case number::bytes2: return 2;
    case number::bytes8: return 8;
    default: return 1;
  }
}

// One task for each row of the grid; its blocks share the elements.
__global__ void copy_kernel(const copy_task* tasks, std::size_t n) {
  auto first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  auto step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::size_t k = blockIdx.y; k < n; k += gridDim.y) {
    const auto& t = tasks[k];
    bool plain = t.from_type == t.to_type;
    const auto* from = t.from + t.from_start * bytes_of(t.from_type);
    auto* to = t.to + t.to_start * bytes_of(t.to_type);
    auto bytes = t.length * bytes_of(t.from_type);
    auto odd = (reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to)
                | static_cast<std::uintptr_t>(bytes)) % sizeof(uint4);
    if (plain && t.count == 1 && odd == 0) {
      for (auto i = first; i < bytes / static_cast<std::int64_t>(sizeof(uint4)); i += step)
        reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
      continue;
    }
    auto inverse = 1.0F / t.scale;
    for (auto i = first; i < t.length * t.count; i += step) {
      auto run = i / t.length;
      auto within = i - run * t.length;
      auto a = t.from_start + run * t.from_stride + within;
      auto b = t.to_start + run * t.to_stride + within;
      if (plain)
        copy_plain(t, a, b);
      else
        store(t.to, t.to_type, b, load(t.from, t.from_type, a, t.scale), inverse);
    }
  }
}

__device__ std::uint64_t load_word(const unsigned char* at) {
  if (reinterpret_cast<std::uintptr_t>(at) % 8 == 0)
    return *reinterpret_cast<const std::uint64_t*>(at);
  std::uint64_t w = 0;
  for (int i = 0; i < 8; ++i)
    w |= static_cast<std::uint64_t>(at[i]) << (8 * i);
  return w;
}

// Eight neighbouring threads hash one block of bytes: a lane each. A whole block's words are loaded
// before they are used, so that many loads are under way at once.
__global__ void checksum_kernel(const block_task* tasks, std::size_t n, xxh3::key_schedule keys,
                                std::uint64_t* sums) {
  auto index = (static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x) / xxh3::lanes;
  auto lane = threadIdx.x % xxh3::lanes;
  if (index >= n)
    return;
  auto mask = 0xFFU << (threadIdx.x % 32U / xxh3::lanes * xxh3::lanes);
  auto t = tasks[index];
  const auto* in = t.bytes + 8 * lane;
  auto acc = xxh3::initial(lane);
  auto take = [&](std::uint64_t own, std::uint64_t key) {
    acc = xxh3::accumulate(acc, own, __shfl_xor_sync(mask, own, 1), key);
  };
  auto blocks = (t.length - 1) / xxh3::block;
  for (std::uint64_t b = 0; b < blocks; ++b) {
    std::uint64_t words[xxh3::stripes];
#pragma unroll
    for (std::size_t s = 0; s < xxh3::stripes; ++s)
      words[s] = load_word(in + b * xxh3::block + s * xxh3::stripe);
#pragma unroll
    for (std::size_t s = 0; s < xxh3::stripes; ++s)
      take(words[s], keys.stripes_[s + lane]);
    acc = xxh3::scramble(acc, keys.scramble_[lane]);
  }
  auto rest = (t.length - 1 - blocks * xxh3::block) / xxh3::stripe;
  for (std::uint64_t s = 0; s < rest; ++s)
    take(load_word(in + blocks * xxh3::block + s * xxh3::stripe), keys.stripes_[s + lane]);
  take(load_word(in + t.length - xxh3::stripe), keys.last_[lane]);
  std::uint64_t all[xxh3::lanes];
#pragma unroll
  for (std::size_t l = 0; l < xxh3::lanes; ++l)
    all[l] = __shfl_sync(mask, acc, static_cast<int>(l), xxh3::lanes);
  if (lane == 0)
    sums[index] = xxh3::finish(all, keys.finish_, t.length);
}

// One row for each block of threads.
__global__ void quantise_kernel(quantise_task t) {
  __shared__ float largest[threads / 32];
  auto limit = t.to_type == number::f8_e4m3 ? largest_f8 : largest_i8;
  for (std::int64_t row = blockIdx.x; row < t.rows; row += gridDim.x) {
    const auto* from = t.from + row * t.columns;
    float m = 0;
    for (std::int64_t i = threadIdx.x; i < t.columns; i += blockDim.x) {
      auto x = fabsf(from[i]);
      m = x > m || x != x ? x : m; // a NaN must not be lost
    }
    for (int d = 16; d > 0; d /= 2) {
      auto other = __shfl_xor_sync(0xFFFFFFFFU, m, d);
      m = other > m || other != other ? other : m;
    }
    if (threadIdx.x % 32 == 0)
      largest[threadIdx.x / 32] = m;
    __syncthreads();
    m = largest[0];
    for (unsigned w = 1; w < threads / 32; ++w)
      m = largest[w] > m || largest[w] != largest[w] ? largest[w] : m;
    auto scale = m > smallest_scaled ? m / limit : (m == m ? 1.0F : m);
    if (threadIdx.x == 0)
      t.scales[row] = scale;
    for (std::int64_t i = threadIdx.x; i < t.columns; i += blockDim.x)
      store(t.to + row * t.columns, t.to_type, i, from[i], 1.0F / scale);
    __syncthreads();
  }
}

} // namespace

const char* run_copies(const copy_task* tasks, std::size_t n) {
  if (n == 0)
    return nullptr;
  device_array<copy_task> list(tasks, n);
  if (list.error == cudaSuccess) {
    dim3 grid(n > 64 ? 16 : 256, static_cast<unsigned>(n < 65535 ? n : 65535));
    copy_kernel<<<grid, threads, 0, stream>>>(list.data, n);
  }
  return finish(list.error);
}

const char* run_checksums(const block_task* tasks, std::size_t n, const void* keys,
                          std::uint64_t* sums) {
  if (n == 0)
    return nullptr;
  device_array<block_task> list(tasks, n);
  device_array<std::uint64_t> out(nullptr, n);
  auto error = list.error == cudaSuccess ? out.error : list.error;
  if (error == cudaSuccess) {
    // Small blocks of threads spread over all of the GPU's processors.
    constexpr unsigned few = 32;
    auto grid = static_cast<unsigned>((n * xxh3::lanes + few - 1) / few);
    checksum_kernel<<<grid, few, 0, stream>>>(list.data, n,
                                              *static_cast<const xxh3::key_schedule*>(keys),
                                              out.data);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(sums, out.data, n * sizeof(*sums), cudaMemcpyDeviceToHost, stream);
  return finish(error);
}

const char* run_quantise(const quantise_task* tasks, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    if (tasks[i].rows > 0)
      quantise_kernel<<<static_cast<unsigned>(tasks[i].rows < 65535 ? tasks[i].rows : 65535),
                        threads, 0, stream>>>(tasks[i]);
  return finish(cudaSuccess);
}

} // namespace millrace::weightsync::cuda
