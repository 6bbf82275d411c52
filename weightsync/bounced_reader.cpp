#include "weightsync/bounced_reader.hpp"

#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace millrace::weightsync {

namespace {

// Enough to keep a connection busy; each takes as much host memory as it reads.
constexpr std::size_t most_in_flight = 8;

class bounced_reader final : public reader {
public:
  bounced_reader(std::unique_ptr<reader> carrier, memory_device& target)
    : carrier_(std::move(carrier)), target_(target) {}
  /// What is under way is written into memory that goes with this.
  ~bounced_reader() override { cancel(); }

  void post(std::uint64_t tag, const read_request& request) override {
    waiting_.emplace_back(tag, request);
    start();
  }

  std::vector<completion> poll(double wait_s) override {
    auto done = carrier_->poll(wait_s);
    for (auto& c : done) {
      auto it = flying_.find(c.tag);
      if (it == flying_.end())
        continue;
      auto& [to, bytes] = it->second;
      if (c.error.empty())
        target_.upload(std::span(bytes).first(to.size()), to.data());
      spare_.push_back(std::move(bytes));
      flying_.erase(it);
    }
    start();
    return done;
  }

  void cancel() override {
    carrier_->cancel();
    waiting_.clear();
    flying_.clear();
  }

private:
  struct flight {
    std::span<std::byte> to;
    std::vector<std::byte> bytes;
  };

  void start() {
    while (!waiting_.empty() && flying_.size() < most_in_flight) {
      auto [tag, request] = waiting_.front();
      waiting_.pop_front();
      auto& f = flying_[tag];
      f.to = request.to;
      if (!spare_.empty()) {
        f.bytes = std::move(spare_.back());
        spare_.pop_back();
      }
      if (f.bytes.size() < request.to.size())
        f.bytes.resize(request.to.size());
      request.to = std::span(f.bytes).first(request.to.size());
      request.memory = memory_kind::host;
      carrier_->post(tag, request);
    }
  }

  std::unique_ptr<reader> carrier_;
  memory_device& target_;
  std::deque<std::pair<std::uint64_t, read_request>> waiting_;
  std::map<std::uint64_t, flight> flying_;
  std::vector<std::vector<std::byte>> spare_;
};

} // namespace

std::unique_ptr<reader> by_way_of_host(std::unique_ptr<reader> carrier, memory_device& target) {
  return std::make_unique<bounced_reader>(std::move(carrier), target);
}

} // namespace millrace::weightsync
