// Groups of processes over libtorch's c10d: their meeting point, and what they do together, whatever
// carries it.

#include "trainer/c10d_backends.hpp"
#include "trainer/collectives.hpp"
#include "trainer/rank_watch.hpp"

#include "runtime/error.hpp"
#include "runtime/log.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>

namespace millrace::trainer {

namespace {

std::string first_line(const char* text) {
  std::string s(text);
  return s.substr(0, s.find('\n'));
}

[[noreturn]] void lost(int rank, int size, const std::string& how) {
  throw rank_lost("trainer rank " + std::to_string(rank) + " of " + std::to_string(size)
                  + ": another rank died or stopped: " + how);
}

/// Gloo's wait() returns when the operation is done. NCCL's makes the current stream wait for it, so
/// that the processor goes on; what is computed afterwards is right unless the operation fails, which
/// only check() tells.
struct c10d_work final : collectives::pending {
  c10d_work(c10::intrusive_ptr<c10d::Work> w, int r, int n)
      : work(std::move(w)), rank(r), size(n) {}
  void wait() override {
    try {
      work->wait();
    } catch (const std::exception& e) {
      lost(rank, size, first_line(e.what()));
    }
  }
  c10::intrusive_ptr<c10d::Work> work;
  int rank, size;
};

/// Host tensors go over one backend, those on CUDA devices over another.
class c10d_collectives final : public collectives {
public:
  c10d_collectives(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Backend> cuda,
                   int rank, int size)
      : host_(std::move(host)), cuda_(std::move(cuda)), rank_(rank), size_(size) {}
  /// NCCL's own shutdown would wait for the other ranks, which may be gone.
  ~c10d_collectives() override { break_off(); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<pending> start_all_reduce(at::Tensor t, reduction how) override {
    c10d::AllreduceOptions o;
    o.reduceOp = how == reduction::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
    return start([&](auto& by, auto& tensors) { return by.allreduce(tensors, o); }, t);
  }
  std::unique_ptr<pending> start_reduce(at::Tensor t, int root) override {
    c10d::ReduceOptions o;
    o.rootRank = root;
    return start([&](auto& by, auto& tensors) { return by.reduce(tensors, o); }, t);
  }
  std::unique_ptr<pending> start_broadcast(at::Tensor t, int root) override {
    c10d::BroadcastOptions o;
    o.rootRank = root;
    return start([&](auto& by, auto& tensors) { return by.broadcast(tensors, o); }, t);
  }

  void abandon() override { break_off(); }

  void check() override {
    if (abandoned_)
      lost(rank_, size_, "its process is gone");
    if (cuda_ && cuda_->getError() != c10d::ErrorType::SUCCESS)
      lost(rank_, size_, "an operation of NCCL's failed or took too long");
  }

private:
  void break_off() noexcept {
    if (abandoned_.exchange(true) || !cuda_)
      return;
    try {
      cuda_->abort();
    } catch (const std::exception& e) {
      log::warning("trainer", "NCCL could not be broken off: " + first_line(e.what()));
    }
  }

  struct done final : pending {
    void wait() override {}
  };

  template <class Start>
  std::unique_ptr<pending> start(Start how, at::Tensor& t) {
    if (abandoned_)
      lost(rank_, size_, "its process is gone");
    if (t.is_cuda() && size_ == 1)
      return std::make_unique<done>();
    ensure(!t.is_cuda() || cuda_, "a tensor on a CUDA device among ranks without NCCL");
    std::vector<at::Tensor> tensors{t};
    try {
      return std::make_unique<c10d_work>(how(t.is_cuda() ? *cuda_ : *host_, tensors), rank_, size_);
    } catch (const std::exception& e) {
      lost(rank_, size_, first_line(e.what()));
    }
  }

  c10::intrusive_ptr<c10d::Backend> host_, cuda_;
  int rank_, size_;
  std::atomic<bool> abandoned_ = false;
};

/// connect(), where a failure is told of.
template <class Connect>
auto connecting(const std::string& name, int rank, int size, Connect connect) {
  try {
    return connect();
  } catch (const user_error&) {
    throw; // no such backend here
  } catch (const std::exception& e) {
    throw rank_lost("trainer rank " + std::to_string(rank) + " of " + std::to_string(size)
                    + " could not connect with the others (" + name + "): "
                    + first_line(e.what()));
  }
}

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

  std::unique_ptr<collectives> group(const std::string& name, int rank, int size,
                                     bool with_cuda) override {
    return connecting(name, rank, size, [&] {
      auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
      auto host = gloo_backend(store, rank, size, timeout_, local_);
      c10::intrusive_ptr<c10d::Backend> cuda;
      if (with_cuda && size > 1)
        cuda = nccl_backend(c10::make_intrusive<c10d::PrefixStore>("nccl", store), rank, size,
                            timeout_);
      return std::make_unique<c10d_collectives>(std::move(host), std::move(cuda), rank, size);
    });
  }

  std::unique_ptr<rank_watch> watch(int rank, int size, std::function<void()> lost) override {
    return connecting("watch", rank, size, [&] {
      auto store = c10::make_intrusive<c10d::PrefixStore>("watch", store_);
      return std::make_unique<rank_watch>(gloo_backend(store, rank, size, timeout_, local_), rank,
                                          size, std::move(lost));
    });
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
