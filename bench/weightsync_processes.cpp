#include "bench/weightsync_processes.hpp"

#include "test/weightsync/child_process.hpp"
#include "weightsync/choose_transport.hpp"
#include "weightsync/publisher.hpp"
#include "weightsync/pull.hpp"
#include "weightsync/stopwatch.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace millrace::bench {

using namespace millrace::weightsync;

namespace {

constexpr double patience_s = 300;

// Tensors of about `bytes`: a few large ones and a small one per layer. They lie in `memory` bytes,
// one after the other, and from its beginning again where that is less.
class model {
public:
  explicit model(std::size_t bytes, std::size_t memory) : memory_(std::min(bytes, memory)) {
    constexpr std::int64_t hidden = 1024;
    std::size_t at = 0;
    for (int layer = 0; bytes - at >= 4 * hidden * hidden * 7; ++layer) {
      auto name = "model.layers." + std::to_string(layer);
      at = add(name + ".norm.weight", {hidden}, at);
      for (const auto* part : {".q", ".k", ".v"})
        at = add(name + part, {hidden, hidden}, at);
      at = add(name + ".mlp", {3 * hidden, hidden}, at);
    }
    at = add("rest", {static_cast<std::int64_t>((bytes - at) / 4)}, at);
    for (std::size_t i = 0; i < memory_.size() / 4; ++i)
      reinterpret_cast<std::uint32_t*>(memory_.data())[i] = static_cast<std::uint32_t>(i) * 2654435761U;
  }
  [[nodiscard]] const std::vector<tensor_view>& views() const { return views_; }
  [[nodiscard]] std::vector<std::byte>& memory() { return memory_; }

private:
  std::size_t add(std::string name, tensor_shape shape, std::size_t at) {
    tensor_view v{std::move(name), dtype::f32, std::move(shape)};
    if (next_ + v.bytes() > memory_.size())
      next_ = 0;
    v.data = memory_.data() + next_;
    next_ += v.bytes();
    views_.push_back(v);
    return at + v.bytes();
  }

  std::vector<std::byte> memory_;
  std::size_t next_ = 0;
  std::vector<tensor_view> views_;
};

void run_trainer(channel& line, const sync_setup& how) {
  auto carrier_ = choose_transport({how.protocols});
  auto& carrier = *carrier_;
  model weights(how.bytes, how.parameter_bytes);
  publisher source(carrier, replicated(weights.views()), {});
  std::int32_t v = 0;
  while (line.receive(patience_s)) {
    weights.memory()[static_cast<std::size_t>(v) % weights.memory().size()] ^= std::byte{1};
    stopwatch watch;
    auto m = source.publish({v}, weights.views(), v);
    line.send(std::to_string(watch.seconds()));
    line.send(to_binary(*m));
    ++v;
  }
}

// Copies as many bytes as a pull brings, from one half of the tensors' memory to the other.
double copy_s(std::vector<std::byte>& memory, std::size_t bytes) {
  constexpr std::size_t step = std::size_t{1} << 20U;
  auto half = memory.size() / 2;
  stopwatch watch;
  for (std::size_t done = 0; done < bytes; done += half)
    for (std::size_t at = 0; at < half; at += step)
      std::memcpy(memory.data() + at, memory.data() + half + at, std::min(step, half - at));
  return watch.seconds();
}

void run_receiver(channel& line, const sync_setup& setup, int index) {
  auto carrier_ = choose_transport({setup.protocols});
  auto& carrier = *carrier_;
  model staging(setup.bytes, setup.tensor_bytes);
  puller sink(carrier, staging.views(), replicated(staging.views()));
  auto in_use = staging.views();
  auto other = staging.views();
  while (auto message = line.receive(patience_s)) {
    if (message->empty()) {
      line.send(std::to_string(copy_s(staging.memory(), setup.bytes)));
      continue;
    }
    auto m = manifest_from_binary(*message);
    pull_options how;
    how.timeout_s = patience_s;
    how.receiver = index;
    auto report = sink.pull(m, how);
    stopwatch pause; // what a generator does at its token boundary
    std::swap(in_use, other);
    auto pause_s = pause.seconds();
    std::ostringstream text;
    text << report.ready() << ' ' << report.wire_s << ' ' << report.verify_s << ' '
         << report.total_s << ' ' << pause_s << ' ' << report.error;
    line.send(text.str());
  }
}

} // namespace

struct weightsync_processes::implementation {
  sync_setup setup;
  child_process trainer;
  std::vector<std::unique_ptr<child_process>> receivers;

  explicit implementation(const sync_setup& how)
    : setup(how), trainer([how](channel& line) { run_trainer(line, how); }) {
    for (int i = 0; i < how.receivers; ++i)
      receivers.push_back(std::make_unique<child_process>(
        [how, i](channel& line) { run_receiver(line, how, i); }));
  }
};

weightsync_processes::weightsync_processes(const sync_setup& how)
  : impl_(std::make_unique<implementation>(how)) {}

weightsync_processes::~weightsync_processes() = default;

sync_times weightsync_processes::sync() {
  sync_times times;
  impl_->trainer.line().send("publish");
  auto published = impl_->trainer.line().receive_text(patience_s);
  auto m = impl_->trainer.line().receive(patience_s);
  if (!published || !m)
    throw std::runtime_error("the trainer process doesn't answer");
  times.publish_s = std::stod(*published);
  for (auto& r : impl_->receivers)
    r->line().send(*m);
  for (auto& r : impl_->receivers) {
    auto text = r->line().receive_text(patience_s);
    std::istringstream in(text.value_or("0 0 0 0 0 no answer"));
    bool ready = false;
    double wire = 0, verify = 0, total = 0, pause = 0;
    in >> ready >> wire >> verify >> total >> pause;
    if (!ready)
      throw std::runtime_error("a receiver process failed: " + *text);
    times.wire_s = std::max(times.wire_s, wire);
    times.verify_s = std::max(times.verify_s, verify);
    times.total_s = std::max(times.total_s, total);
    times.pause_s = std::max(times.pause_s, pause);
  }
  return times;
}

double weightsync_processes::memcpy_gb_s() {
  for (auto& r : impl_->receivers)
    r->line().send(std::string());
  double slowest = 0;
  for (auto& r : impl_->receivers)
    slowest = std::max(slowest, std::stod(r->line().receive_text(patience_s).value_or("1e9")));
  auto bytes = static_cast<double>(impl_->setup.bytes) * static_cast<double>(impl_->receivers.size());
  return bytes / 1e9 / slowest;
}

double ucx_perftest_gb_s(int iterations) {
  auto command = std::string("UCX_TLS=tcp UCX_NET_DEVICES=lo UCX_TCP_TX_SEG_SIZE=1m "
                             "UCX_TCP_RX_SEG_SIZE=1m timeout 120 ucx_perftest -p 13377 ");
  auto server = child_process([&](channel&) {
    std::freopen("/dev/null", "w", stdout);
    std::freopen("/dev/null", "w", stderr);
    ::execl("/bin/sh", "sh", "-c", ("exec env " + command).c_str(), nullptr);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  auto* client = ::popen((command + "localhost -t ucp_get -s 1048576 -f -w 5 -n "
                          + std::to_string(iterations) + " 2>/dev/null")
                           .c_str(),
                         "r");
  std::array<char, 512> text{};
  double mb_s = 0;
  // The last line: iterations, three latencies, then MB/s average and overall, and two rates.
  while (client != nullptr && std::fgets(text.data(), text.size(), client) != nullptr) {
    double n = 0, a = 0, b = 0, c = 0, average = 0, overall = 0;
    const auto* numbers = std::strchr(text.data(), ':') ? std::strchr(text.data(), ':') + 1
                                                        : text.data();
    if (std::sscanf(numbers, "%lf %lf %lf %lf %lf %lf", &n, &a, &b, &c, &average, &overall) == 6)
      mb_s = overall;
  }
  if (client != nullptr)
    ::pclose(client);
  return mb_s * 1048576 / 1e9;
}

} // namespace millrace::bench
