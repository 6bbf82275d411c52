#include "runtime/model/page_memory.hpp"

#include "runtime/error.hpp"

#include <sys/mman.h>

#include <string>

namespace millrace::model {

page_memory::page_memory(std::size_t bytes, const char* what) {
  constexpr std::size_t huge = std::size_t{2} << 20;
  const auto size = bytes < huge ? (bytes + 4095) / 4096 * 4096 + 4096
                                 : (bytes + huge - 1) / huge * huge;
  void* at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    throw user_error(std::string(what) + " needs " + std::to_string(bytes >> 20)
                     + " MiB, which this machine does not give");
  if (bytes >= huge)
    ::madvise(at, size, MADV_HUGEPAGE); // a wish
  data_ = {static_cast<std::byte*>(at), unmap{size}};
}

void page_memory::unmap::operator()(std::byte* p) const { ::munmap(p, size); }

} // namespace millrace::model
