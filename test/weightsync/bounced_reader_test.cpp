#include "runtime/random.hpp"
#include "weightsync/bounced_reader.hpp"
#include "weightsync/host_device.hpp"
#include "weightsync/local_transport.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

using namespace millrace;
using namespace millrace::weightsync;

namespace {

/// Stands for a device whose memory only it can write to.
struct other_device : host_device {
  void upload(std::span<const std::byte> from, std::byte* to) override {
    ++uploads;
    host_device::upload(from, to);
  }
  std::size_t uploads = 0;
};

/// A transport's reader that is told of host memory only, and how many reads it has at a time.
struct watched : reader {
  watched(std::unique_ptr<reader> inner, std::size_t& most) : inner_(std::move(inner)), most_(most) {}
  void post(std::uint64_t tag, const read_request& r) override {
    REQUIRE(r.memory == memory_kind::host);
    most_ = std::max(most_, ++open_);
    inner_->post(tag, r);
  }
  std::vector<completion> poll(double wait_s) override {
    auto done = inner_->poll(wait_s);
    open_ -= done.size();
    return done;
  }
  void cancel() override {
    open_ = 0;
    inner_->cancel();
  }

private:
  std::unique_ptr<reader> inner_;
  std::size_t& most_;
  std::size_t open_ = 0;
};

/// Writes into its targets for as long as a reader may: until it is cancelled, or ends.
struct late : reader {
  explicit late(std::vector<std::size_t>& written_at_end) : written_at_end_(written_at_end) {}
  ~late() override { written_at_end_.push_back(write()); }
  void post(std::uint64_t, const read_request& r) override { open_.push_back(r.to); }
  std::vector<completion> poll(double) override { return {}; }
  void cancel() override { write(); }

private:
  std::size_t write() {
    for (auto to : open_)
      std::ranges::fill(to, std::byte{1});
    return std::exchange(open_, {}).size();
  }

  std::vector<std::size_t>& written_at_end_;
  std::vector<std::span<std::byte>> open_;
};

} // namespace

TEST_CASE("what a transport can't read into is filled by way of host memory") {
  local_transport carrier;
  auto source = carrier.expose(100'000, memory_kind::host);
  random_stream draws(5);
  for (auto& b : source->memory())
    b = static_cast<std::byte>(draws.below(256));
  other_device device;
  std::size_t most = 0;
  auto reads = by_way_of_host(std::make_unique<watched>(carrier.make_reader(), most), device);
  std::vector<std::byte> target(100'000);
  std::uint64_t tag = 0;
  for (std::size_t at = 0; at < target.size();) { // pieces of many lengths, the shortest empty
    const auto n = std::min<std::size_t>(target.size() - at, draws.below(4000));
    reads->post(tag++, {&source->region(), at, std::span(target).subspan(at, n),
                        memory_kind::cuda});
    at += n;
  }
  std::uint64_t ended = 0;
  while (ended < tag)
    for (const auto& c : reads->poll(1)) {
      REQUIRE(c.error.empty());
      ++ended;
    }
  REQUIRE(std::ranges::equal(target, source->memory()));
  REQUIRE(device.uploads == tag);
  REQUIRE(most > 1);
  REQUIRE(most <= 8);
}

TEST_CASE("a read by way of host memory that fails or is given up writes nothing") {
  local_transport carrier;
  auto source = carrier.expose(100, memory_kind::host);
  other_device device;
  auto reads = by_way_of_host(carrier.make_reader(), device);
  std::vector<std::byte> target(60, std::byte{7});
  const auto ask = [&](std::uint64_t tag, std::uint64_t offset) {
    reads->post(tag, {&source->region(), offset, target, memory_kind::cuda});
  };
  ask(1, 50); // beyond the end
  const auto done = reads->poll(1);
  REQUIRE(done.size() == 1);
  REQUIRE_FALSE(done[0].error.empty());
  for (std::uint64_t i = 0; i < 20; ++i)
    ask(i, 0);
  reads->cancel();
  REQUIRE(reads->poll(0).empty());
  REQUIRE(std::ranges::count(target, std::byte{7}) == 60);
  REQUIRE(device.uploads == 0);
  ask(3, 0);
  REQUIRE(reads->poll(1).size() == 1);
  REQUIRE(device.uploads == 1);
}

TEST_CASE("reads by way of host memory have ended before that memory goes") {
  std::vector<std::size_t> written_at_end;
  std::vector<std::byte> target(60);
  other_device device;
  {
    auto reads = by_way_of_host(std::make_unique<late>(written_at_end), device);
    for (std::uint64_t i = 0; i < 20; ++i)
      reads->post(i, {nullptr, 0, target, memory_kind::cuda});
  }
  REQUIRE(written_at_end == std::vector<std::size_t>{0});
  REQUIRE(device.uploads == 0);
}
