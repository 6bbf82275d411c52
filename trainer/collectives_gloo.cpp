// c10d's Gloo, as the wheel's libtorch has it.

#include "trainer/collectives.hpp"

#include "runtime/error.hpp"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace millrace::trainer {

namespace {

std::string first_line(const char* text) {
  std::string s(text);
  return s.substr(0, s.find('\n'));
}

[[noreturn]] void lost(int rank, int size, const std::exception& e) {
  throw rank_lost("trainer rank " + std::to_string(rank) + " of " + std::to_string(size)
                  + ": another rank died or stopped: " + first_line(e.what()));
}

struct gloo_work final : collectives::pending {
  gloo_work(c10::intrusive_ptr<c10d::Work> w, int rank, int size)
      : work(std::move(w)), rank(rank), size(size) {}
  void wait() override {
    try {
      work->wait();
    } catch (const std::exception& e) {
      lost(rank, size, e);
    }
  }
  c10::intrusive_ptr<c10d::Work> work;
  int rank, size;
};

class gloo_collectives final : public collectives {
public:
  gloo_collectives(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, int rank, int size)
      : group_(std::move(group)), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<pending> start_all_reduce(at::Tensor t, reduction how) override {
    c10d::AllreduceOptions o;
    o.reduceOp = how == reduction::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
    return start([&](auto& tensors) { return group_->allreduce(tensors, o); }, t);
  }
  std::unique_ptr<pending> start_reduce(at::Tensor t, int root) override {
    c10d::ReduceOptions o;
    o.rootRank = root;
    return start([&](auto& tensors) { return group_->reduce(tensors, o); }, t);
  }
  std::unique_ptr<pending> start_broadcast(at::Tensor t, int root) override {
    c10d::BroadcastOptions o;
    o.rootRank = root;
    return start([&](auto& tensors) { return group_->broadcast(tensors, o); }, t);
  }

private:
  template <class Start>
  std::unique_ptr<pending> start(Start how, at::Tensor& t) {
    std::vector<at::Tensor> tensors{t};
    try {
      return std::make_unique<gloo_work>(how(tensors), rank_, size_);
    } catch (const std::exception& e) {
      lost(rank_, size_, e);
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  int rank_, size_;
};

class tcp_rendezvous final : public rendezvous {
public:
  tcp_rendezvous(const std::string& host, std::uint16_t port, bool server, bool local,
                 std::chrono::milliseconds timeout)
      : local_(local), timeout_(timeout) {
    c10d::TCPStoreOptions o;
    o.port = port;
    o.isServer = server;
    o.waitWorkers = false;
    o.timeout = timeout;
    store_ = c10::make_intrusive<c10d::TCPStore>(host, o);
  }

  std::uint16_t port() const override { return store_->getPort(); }

  std::unique_ptr<collectives> group(const std::string& name, int rank, int size) override {
    try {
      auto o = c10d::ProcessGroupGloo::Options::create(timeout_);
      // A machine's own name may not be known to its resolver.
      o->devices.push_back(local_ ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                  : c10d::ProcessGroupGloo::createDefaultDevice());
      o->threads = 1; // operations of one group run in the order in which they were started
      auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
      return std::make_unique<gloo_collectives>(
        c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, o), rank, size);
    } catch (const std::exception& e) {
      throw rank_lost("trainer rank " + std::to_string(rank) + " of " + std::to_string(size)
                      + " could not connect with the others (" + name + "): " + first_line(e.what()));
    }
  }

  void arrive() override { count(1); }
  std::int64_t arrived() override { return count(0); }

  void post(std::int64_t number, const std::string& message) override {
    try {
      store_->set(key(number), std::vector<std::uint8_t>(message.begin(), message.end()));
      if (number > 1)
        store_->deleteKey(key(number - 1));
    } catch (const std::exception& e) {
      throw rank_lost("posting to trainer ranks: " + first_line(e.what()));
    }
  }

  std::string read(std::int64_t number) override {
    for (;;) {
      try {
        store_->wait({key(number)}, std::chrono::milliseconds(1000));
        auto bytes = store_->get(key(number));
        return {bytes.begin(), bytes.end()};
      } catch (const c10::DistNetworkError& e) {
        throw rank_lost("trainer rank 0 is gone: " + first_line(e.what()));
      } catch (const c10::DistStoreError&) {
        // Nothing yet: asked again.
      }
    }
  }

private:
  std::int64_t count(std::int64_t more) {
    try {
      return store_->add("arrived", more);
    } catch (const std::exception& e) {
      throw rank_lost("trainer rank 0 is gone: " + first_line(e.what()));
    }
  }

  static std::string key(std::int64_t number) { return "message/" + std::to_string(number); }

  bool local_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

} // namespace

std::unique_ptr<rendezvous> rendezvous::host(std::uint16_t port,
                                             std::chrono::milliseconds timeout, bool local) {
  try {
    return std::make_unique<tcp_rendezvous>("127.0.0.1", port, true, local, timeout);
  } catch (const std::exception& e) {
    throw user_error("trainer.parallel.port: cannot listen on " + std::to_string(port) + ": "
                     + first_line(e.what()) + "; choose another one, or 0 for any");
  }
}

std::unique_ptr<rendezvous> rendezvous::join(const std::string& host, std::uint16_t port,
                                             std::chrono::milliseconds timeout) {
  try {
    auto local = host == "127.0.0.1" || host == "localhost";
    return std::make_unique<tcp_rendezvous>(host, port, false, local, timeout);
  } catch (const std::exception& e) {
    throw rank_lost("trainer rank 0 is not at " + host + ":" + std::to_string(port) + ": "
                    + first_line(e.what()));
  }
}

} // namespace millrace::trainer
