#include "weightsync/ucx_transport.hpp"

#include "runtime/error.hpp"
#include "weightsync/ucx_caretaker.hpp"
#include "weightsync/ucx_context.hpp"
#include "weightsync/ucx_progress_thread.hpp"
#include "weightsync/ucx_reader.hpp"

#include <cstring>

namespace millrace::weightsync {

namespace {

// Memory that UCX allocated: shared memory where it can, so that receivers on this machine map it.
class ucx_exposed : public exposed_memory {
public:
  ucx_exposed(std::shared_ptr<ucx_progress_thread> server, std::size_t bytes, memory_kind kind)
    : server_(std::move(server)), kind_(kind) {
    auto context = server_->context()->handle();
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS
                        | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    params.length = std::max<std::size_t>(bytes, 1);
    params.flags = UCP_MEM_MAP_ALLOCATE;
    params.memory_type = ucx_memory_type(kind);
    auto what = "weight_sync: registering " + std::to_string(bytes) + " bytes of "
                + (kind == memory_kind::cuda ? "GPU" : "host") + " memory with UCX";
    ucx_check(ucp_mem_map(context, &params, &handle_), what);
    try {
      describe(bytes, what);
    } catch (...) {
      ucp_mem_unmap(context, handle_);
      throw;
    }
    if (kind == memory_kind::host)
      std::memset(memory().data(), 0, bytes);
  }

  ~ucx_exposed() override { ucp_mem_unmap(server_->context()->handle(), handle_); }

  [[nodiscard]] std::span<std::byte> memory() const override {
    return {reinterpret_cast<std::byte*>(region_.address), region_.bytes};
  }
  [[nodiscard]] const remote_region& region() const override { return region_; }

private:
  void describe(std::size_t bytes, const std::string& what) {
    auto context = server_->context()->handle();
    ucp_mem_attr_t attributes{};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    ucx_check(ucp_mem_query(handle_, &attributes), what);
    void* key = nullptr;
    std::size_t length = 0;
    ucx_check(ucp_rkey_pack(context, handle_, &key, &length), what);
    region_.key.assign(static_cast<const char*>(key), length);
    ucp_rkey_buffer_release(key);
    region_.transport = "ucx";
    region_.peer = ucx_peer(server_->address());
    region_.address = reinterpret_cast<std::uint64_t>(attributes.address);
    region_.bytes = bytes;
    region_.memory = kind_;
  }

  std::shared_ptr<ucx_progress_thread> server_;
  memory_kind kind_;
  ucp_mem_h handle_ = nullptr;
  remote_region region_;
};

} // namespace

ucx_transport::ucx_transport(ucx_options options)
  : context_(std::make_shared<ucx_context>(options)),
    open_to_strangers_(options.transports != without_tcp) {}

ucx_transport::~ucx_transport() = default;

bool ucx_transport::supports(memory_kind kind) const { return context_->supports(kind); }

std::unique_ptr<exposed_memory> ucx_transport::expose(std::size_t bytes, memory_kind kind) {
  if (!supports(kind))
    throw user_error("weight_sync: this UCX can't register GPU memory; use one that was built with "
                     "CUDA (the PyPI package libucx-cu13 is)");
  std::lock_guard lock(mutex_);
  if (!server_)
    server_ = std::make_shared<ucx_progress_thread>(context_);
  return std::make_unique<ucx_exposed>(server_, bytes, kind);
}

std::unique_ptr<reader> ucx_transport::make_reader() { return make_ucx_reader(); }

std::unique_ptr<ucx_reader> ucx_transport::make_ucx_reader() {
  if (!open_to_strangers_)
    return std::make_unique<ucx_reader>(context_);
  std::lock_guard lock(mutex_);
  if (!caretaker_)
    caretaker_ = std::make_shared<ucx_caretaker>();
  return std::make_unique<ucx_reader>(context_, caretaker_);
}

} // namespace millrace::weightsync
