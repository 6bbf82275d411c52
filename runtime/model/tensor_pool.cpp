#include "runtime/model/tensor_pool.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <list>
#include <malloc.h>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>

namespace millrace::model {
namespace {

constexpr std::size_t least = std::size_t{256} << 10; ///< smaller ones are malloc()'s
constexpr std::size_t huge_page = std::size_t{2} << 20;

/// Eight sizes between powers of two: a block is at most an eighth too long, and what is too long of
/// it is not touched.
std::size_t block_size(std::size_t bytes) {
  const auto step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

class pool {
public:
  void* take(std::size_t bytes) {
    const auto size = block_size(bytes);
    const std::lock_guard lock(guard_);
    if (auto found = free_.find(size); found != free_.end()) {
      const auto block = found->second.back(); // the one that was used last
      auto* data = block->data;
      age_.erase(block);
      found->second.pop_back();
      if (found->second.empty())
        free_.erase(found);
      usage_.free -= static_cast<std::int64_t>(size);
      return use(data, size);
    }
    const auto most = std::max(most_in_use_, usage_.in_use + static_cast<std::int64_t>(size));
    make_room(most + most / 16 - static_cast<std::int64_t>(size));
    auto* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
      throw std::bad_alloc();
    if (size >= 2 * huge_page)
      ::madvise(data, size, MADV_HUGEPAGE); // a wish
    return use(data, size);
  }

  void give_back(void* data) {
    const std::lock_guard lock(guard_);
    const auto found = sizes_.find(data);
    const auto size = found->second;
    sizes_.erase(found);
    age_.push_back({data, size});
    free_[size].push_back(std::prev(age_.end()));
    usage_.in_use -= static_cast<std::int64_t>(size);
    usage_.free += static_cast<std::int64_t>(size);
  }

  void trim() {
    const std::lock_guard lock(guard_);
    make_room(0);
    most_in_use_ = usage_.peak = usage_.in_use;
  }

  tensor_pool_usage usage() {
    const std::lock_guard lock(guard_);
    return usage_;
  }

private:
  struct block {
    void* data;
    std::size_t size;
  };

  void* use(void* data, std::size_t size) {
    sizes_[data] = size;
    usage_.in_use += static_cast<std::int64_t>(size);
    most_in_use_ = std::max(most_in_use_, usage_.in_use);
    usage_.peak = std::max(usage_.peak, usage_.in_use + usage_.free);
    return data;
  }

  /// Gives back what has been free for longest, until no more than `bytes` are mapped.
  void make_room(std::int64_t bytes) {
    while (!age_.empty() && usage_.in_use + usage_.free > bytes) {
      const auto oldest = age_.begin();
      auto same = free_.find(oldest->size);
      same->second.remove(oldest);
      if (same->second.empty())
        free_.erase(same);
      ::munmap(oldest->data, oldest->size);
      usage_.free -= static_cast<std::int64_t>(oldest->size);
      age_.erase(oldest);
    }
  }

  std::mutex guard_;
  std::list<block> age_;                                                ///< free ones, oldest first
  std::map<std::size_t, std::list<std::list<block>::iterator>> free_;   ///< by size
  std::unordered_map<void*, std::size_t> sizes_;                        ///< of those in use
  std::int64_t most_in_use_ = 0;
  tensor_pool_usage usage_;
};

/// Never destroyed: tensors may outlive everything.
pool& the_pool() {
  static auto* p = new pool;
  return *p;
}

class pool_allocator final : public c10::Allocator {
public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes >= least) {
      auto* data = the_pool().take(bytes);
      return {data, data, [](void* p) { the_pool().give_back(p); }, cpu};
    }
    void* data = nullptr;
    if (bytes > 0 && ::posix_memalign(&data, 64, bytes) != 0)
      throw std::bad_alloc();
    return {data, data, [](void* p) { std::free(p); }, cpu};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

} // namespace

void pool_tensor_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  static pool_allocator allocator;
  c10::SetCPUAllocator(&allocator, 1);
}

tensor_pool_usage tensor_pool() { return the_pool().usage(); }
void trim_tensor_pool() { the_pool().trim(); }

} // namespace millrace::model
