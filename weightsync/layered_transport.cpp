#include "weightsync/layered_transport.hpp"

#include "runtime/error.hpp"
#include "weightsync/stopwatch.hpp"
#include "weightsync/ucx_reader.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <optional>

namespace millrace::weightsync {

namespace {

// Two texts in one: the first one's length before them.
std::string join(const std::string& a, const std::string& b) {
  auto length = static_cast<std::uint32_t>(a.size());
  std::string both(sizeof length, '\0');
  std::memcpy(both.data(), &length, sizeof length);
  return both + a + b;
}

std::pair<std::string, std::string> split(const std::string& both) {
  std::uint32_t length = 0;
  if (both.size() < sizeof length)
    throw user_error("weight_sync: the publisher's address can't be read");
  std::memcpy(&length, both.data(), sizeof length);
  if (length > both.size() - sizeof length)
    throw user_error("weight_sync: the publisher's address can't be read");
  return {both.substr(sizeof length, length), both.substr(sizeof length + length)};
}

class exposed_twice : public exposed_memory {
public:
  exposed_twice(std::unique_ptr<exposed_memory> ucx, std::unique_ptr<exposed_memory> sockets)
    : ucx_(std::move(ucx)), sockets_(std::move(sockets)), region_(ucx_->region()) {
    region_.transport = "ucx+tcp";
    auto empty = remote_region{};
    const auto& other = sockets_ ? sockets_->region() : empty;
    region_.peer = join(region_.peer, other.peer);
    region_.key = join(region_.key, other.key);
  }
  [[nodiscard]] std::span<std::byte> memory() const override { return ucx_->memory(); }
  [[nodiscard]] const remote_region& region() const override { return region_; }

private:
  std::unique_ptr<exposed_memory> ucx_;
  std::unique_ptr<exposed_memory> sockets_; // withdrawn before the memory goes
  remote_region region_;
};

class layered_reader : public reader {
public:
  layered_reader(std::unique_ptr<ucx_reader> ucx, std::unique_ptr<reader> sockets)
    : ucx_(std::move(ucx)), sockets_(std::move(sockets)) {}

  void prepare(std::span<std::byte> memory, memory_kind kind) override {
    ucx_->prepare(memory, kind);
  }

  void post(std::uint64_t tag, const read_request& r) override {
    auto& w = ways_to(*r.from);
    auto part = r;
    if (!w.by_ucx)
      w.by_ucx = w.sockets.peer.empty() || ucx_->reaches(w.ucx);
    part.from = *w.by_ucx ? &w.ucx : &w.sockets;
    (*w.by_ucx ? static_cast<reader&>(*ucx_) : *sockets_).post(tag, part);
    (*w.by_ucx ? open_ucx_ : open_sockets_) += 1;
  }

  std::vector<completion> poll(double wait_s) override {
    if (open_sockets_ == 0)
      return ended(*ucx_, open_ucx_, wait_s);
    if (open_ucx_ == 0)
      return ended(*sockets_, open_sockets_, wait_s);
    // There is no waiting for both at once: they take turns.
    constexpr double turn_s = 0.0005;
    stopwatch waited;
    do {
      if (auto done = ended(*ucx_, open_ucx_, std::min(turn_s, wait_s)); !done.empty())
        return done;
      if (auto done = ended(*sockets_, open_sockets_, std::min(turn_s, wait_s)); !done.empty())
        return done;
    } while (waited.seconds() < wait_s);
    return {};
  }

  void cancel() override {
    ucx_->cancel();
    sockets_->cancel();
    open_ucx_ = open_sockets_ = 0;
  }

private:
  struct ways {
    remote_region ucx, sockets;
    std::optional<bool> by_ucx; ///< found out with the first read
  };

  std::vector<completion> ended(reader& from, std::size_t& open, double wait_s) {
    auto done = from.poll(wait_s);
    open -= std::min(open, done.size());
    // Whoever comes back may be reached in another way.
    if (std::any_of(done.begin(), done.end(), [](const auto& c) { return c.peer_lost; }))
      for (auto& [id, w] : known_)
        w.by_ucx.reset();
    return done;
  }

  ways& ways_to(const remote_region& region) {
    const std::tuple key{region.peer, region.key, region.address};
    if (auto it = known_.find(key); it != known_.end())
      return it->second;
    if (region.transport != "ucx+tcp")
      throw user_error("weight_sync: the publisher uses the transport \"" + region.transport
                       + "\", but this receiver \"ucx+tcp\"");
    ways w;
    auto [ucx_peer, socket_peer] = split(region.peer);
    auto [ucx_key, socket_key] = split(region.key);
    w.ucx = w.sockets = region;
    w.ucx.transport = "ucx";
    w.ucx.peer = ucx_peer;
    w.ucx.key = ucx_key;
    w.sockets.transport = "tcp";
    w.sockets.peer = socket_peer;
    w.sockets.key = socket_key;
    return known_.emplace(key, std::move(w)).first->second;
  }

  std::unique_ptr<ucx_reader> ucx_;
  std::unique_ptr<reader> sockets_;
  std::map<std::tuple<std::string, std::string, std::uint64_t>, ways> known_; // by peer, key, address
  std::size_t open_ucx_ = 0;
  std::size_t open_sockets_ = 0;
};

} // namespace

layered_transport::layered_transport(ucx_options ucx, socket_options sockets)
  : ucx_(std::move(ucx)), sockets_(std::move(sockets)) {}

std::unique_ptr<exposed_memory> layered_transport::expose(std::size_t bytes, memory_kind kind) {
  auto memory = ucx_.expose(bytes, kind);
  auto too = kind == memory_kind::host ? sockets_.expose_too(memory->memory()) : nullptr;
  return std::make_unique<exposed_twice>(std::move(memory), std::move(too));
}

std::unique_ptr<reader> layered_transport::make_reader() {
  return std::make_unique<layered_reader>(ucx_.make_ucx_reader(), sockets_.make_reader());
}

} // namespace millrace::weightsync
