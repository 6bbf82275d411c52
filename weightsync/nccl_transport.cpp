#include "weightsync/nccl_transport.hpp"

#include "runtime/error.hpp"
#include "weightsync/memory_device.hpp"

#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

namespace millrace::weightsync {

class nccl_transport::exposed : public exposed_memory {
public:
  exposed(buffer memory, std::size_t bytes, std::string peer, std::string key)
    : memory_(std::move(memory)),
      region_{"nccl", std::move(peer), std::move(key), 0, bytes, memory_kind::cuda} {}
  [[nodiscard]] std::span<std::byte> memory() const override {
    return {memory_.get(), region_.bytes};
  }
  [[nodiscard]] const remote_region& region() const override { return region_; }

private:
  buffer memory_;
  remote_region region_;
};

class nccl_transport::copy_reader : public reader {
public:
  explicit copy_reader(const nccl_transport& owner) : owner_(owner) {}

  void post(std::uint64_t tag, const read_request& r) override {
    auto source = owner_.find(*r.from);
    if (!source) {
      done_.push_back({tag, "the region was not delivered to this rank", true});
      return;
    }
    auto error = cudaMemcpyAsync(r.to.data(), source.get() + r.offset, r.to.size(),
                                 cudaMemcpyDefault, cudaStreamPerThread);
    done_.push_back({tag, error == cudaSuccess ? "" : cudaGetErrorString(error), false});
  }

  std::vector<completion> poll(double) override {
    auto error = cudaStreamSynchronize(cudaStreamPerThread);
    if (error != cudaSuccess)
      for (auto& c : done_)
        c.error = cudaGetErrorString(error);
    return std::exchange(done_, {});
  }

  void cancel() override {
    cudaStreamSynchronize(cudaStreamPerThread);
    done_.clear();
  }

private:
  const nccl_transport& owner_;
  std::vector<completion> done_;
};

nccl_transport::nccl_transport(std::shared_ptr<nccl_domain> domain)
  : domain_(std::move(domain)) {}

std::unique_ptr<exposed_memory> nccl_transport::expose(std::size_t bytes, memory_kind kind) {
  if (kind != memory_kind::cuda)
    throw user_error("weight_sync: NCCL moves GPU memory only");
  auto memory = device_for(kind).allocate(bytes);
  auto peer = std::to_string(domain_->rank());
  std::lock_guard lock(mutex_);
  auto key = peer + "/" + std::to_string(next_key_++);
  regions_[key] = memory;
  return std::make_unique<exposed>(std::move(memory), bytes, std::move(peer), std::move(key));
}

std::unique_ptr<reader> nccl_transport::make_reader() {
  return std::make_unique<copy_reader>(*this);
}

auto nccl_transport::find(const remote_region& region) const -> buffer {
  std::lock_guard lock(mutex_);
  auto it = regions_.find(region.key);
  return it == regions_.end() || region.transport != "nccl" ? nullptr : it->second;
}

void nccl_transport::deliver(const remote_region& region, double timeout_s) {
  auto memory = find(region);
  if (!memory) {
    memory = device_for(memory_kind::cuda).allocate(region.bytes);
    std::lock_guard lock(mutex_);
    regions_[region.key] = memory;
  }
  domain_->broadcast({memory.get(), region.bytes}, std::stoi(region.peer), timeout_s);
}

} // namespace millrace::weightsync
