#include "weightsync/local_transport.hpp"

#include "runtime/error.hpp"
#include "weightsync/memory_device.hpp"

#include <algorithm>
#include <deque>

namespace millrace::weightsync {

class local_transport::exposed : public exposed_memory {
public:
  exposed(buffer bytes, std::string key) : bytes_(std::move(bytes)) {
    region_.transport = "local";
    region_.peer = "this process";
    region_.key = std::move(key);
    region_.bytes = bytes_->size();
  }
  [[nodiscard]] std::span<std::byte> memory() const override { return *bytes_; }
  [[nodiscard]] const remote_region& region() const override { return region_; }

private:
  buffer bytes_;
  remote_region region_;
};

class local_transport::local_reader : public reader {
public:
  explicit local_reader(const local_transport& owner) : owner_(owner) {}

  void post(std::uint64_t tag, const read_request& request) override {
    waiting_.push_back({tag, request});
  }

  // One read at a time, so that its bytes are still in the cache when they are verified.
  std::vector<completion> poll(double) override {
    if (waiting_.empty())
      return {};
    auto [tag, request] = waiting_.front();
    waiting_.pop_front();
    const auto& region = *request.from;
    auto source = owner_.find(region.key);
    if (region.transport != "local" || !source)
      return {{tag, "the publisher's memory is gone", true}};
    if (request.offset > source->size() || request.to.size() > source->size() - request.offset)
      return {{tag, "a read beyond the publisher's memory", false}};
    const auto bytes = std::span<const std::byte>(*source).subspan(request.offset,
                                                                   request.to.size());
    device_for(request.memory).upload(bytes, request.to.data());
    return {{tag, {}, false}};
  }

  void cancel() override { waiting_.clear(); }

private:
  const local_transport& owner_;
  std::deque<std::pair<std::uint64_t, read_request>> waiting_;
};

void reader::prepare(std::span<std::byte>, memory_kind) {}

std::unique_ptr<exposed_memory> local_transport::expose(std::size_t bytes, memory_kind kind) {
  if (kind != memory_kind::host)
    throw user_error("weight_sync.transport \"local\" moves host memory only; GPU memory needs "
                     "\"ucx\"");
  auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  std::lock_guard lock(mutex_);
  auto key = std::to_string(next_key_++);
  std::erase_if(exposed_, [](const auto& e) { return e.second.expired(); });
  exposed_[key] = memory;
  return std::make_unique<exposed>(std::move(memory), std::move(key));
}

std::unique_ptr<reader> local_transport::make_reader() {
  return std::make_unique<local_reader>(*this);
}

auto local_transport::find(const std::string& key) const -> buffer {
  std::lock_guard lock(mutex_);
  auto it = exposed_.find(key);
  return it == exposed_.end() ? nullptr : it->second.lock();
}

} // namespace millrace::weightsync
