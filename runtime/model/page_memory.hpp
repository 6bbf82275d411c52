#pragma once

#include <cstddef>
#include <memory>

namespace millrace::model {

/// A large block of zeroed memory, aligned to 64 bytes, on huge pages where the system gives them:
/// weights and KV caches are read from end to end at every token, and first touching 4 KiB pages
/// costs more than the reading.
class page_memory {
public:
  page_memory() = default;
  /// Throws user_error saying that `what` does not fit. Memory is taken as it is touched.
  page_memory(std::size_t bytes, const char* what);

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return data_ ? data_.get_deleter().size : 0; }
  [[nodiscard]] bool empty() const { return !data_; }

private:
  struct unmap {
    unmap() : size(0) {}
    explicit unmap(std::size_t bytes) : size(bytes) {}
    std::size_t size;
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, unmap> data_;
};

} // namespace millrace::model
