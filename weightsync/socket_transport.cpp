#include "weightsync/socket_transport.hpp"

#include "runtime/error.hpp"
#include "weightsync/socket_reader.hpp"
#include "weightsync/socket_server.hpp"

#include <sys/mman.h>

namespace millrace::weightsync {

namespace {

class mapping {
public:
  explicit mapping(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0)
      return;
    auto* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
      throw user_error("weight_sync: no memory for " + std::to_string(bytes) + " bytes of weights");
    data_ = static_cast<std::byte*>(p);
    ::madvise(data_, bytes, MADV_HUGEPAGE);
  }
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;
  ~mapping() {
    if (data_ != nullptr)
      ::munmap(data_, bytes_);
  }
  [[nodiscard]] std::span<std::byte> memory() const { return {data_, bytes_}; }

private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

class served : public exposed_memory {
public:
  served(std::shared_ptr<socket_server> server, std::span<std::byte> memory,
         std::unique_ptr<mapping> own)
    : server_(std::move(server)), own_(std::move(own)), memory_(memory),
      key_(server_->publish(memory)) {
    region_.transport = "tcp";
    region_.peer = to_text(server_->peer());
    region_.key = to_text(key_);
    region_.bytes = memory.size();
  }
  ~served() override { server_->withdraw(key_); }

  [[nodiscard]] std::span<std::byte> memory() const override { return memory_; }
  [[nodiscard]] const remote_region& region() const override { return region_; }

private:
  std::shared_ptr<socket_server> server_;
  std::unique_ptr<mapping> own_;
  std::span<std::byte> memory_;
  secret key_;
  remote_region region_;
};

} // namespace

socket_transport::socket_transport(socket_options options) : options_(std::move(options)) {}

socket_transport::~socket_transport() = default;

std::shared_ptr<socket_server> socket_transport::server() {
  std::lock_guard lock(mutex_);
  if (!server_)
    server_ = std::make_shared<socket_server>(options_.hosts, options_.greeting_s);
  return server_;
}

std::unique_ptr<exposed_memory> socket_transport::expose(std::size_t bytes, memory_kind kind) {
  if (kind != memory_kind::host)
    throw user_error("weight_sync.transport \"tcp\" moves host memory only; GPU memory needs \"ucx\"");
  auto own = std::make_unique<mapping>(bytes);
  auto memory = own->memory();
  return std::make_unique<served>(server(), memory, std::move(own));
}

std::unique_ptr<exposed_memory> socket_transport::expose_too(std::span<std::byte> memory) {
  return std::make_unique<served>(server(), memory, nullptr);
}

std::unique_ptr<reader> socket_transport::make_reader() { return std::make_unique<socket_reader>(); }

} // namespace millrace::weightsync
