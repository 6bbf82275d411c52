#include "trainer/collectives.hpp"

#include "runtime/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/tensor.h>

#include <condition_variable>
#include <functional>
#include <mutex>

namespace millrace::trainer {

void collectives::wait(pending& p) {
  auto began = std::chrono::steady_clock::now();
  p.wait();
  waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

void collectives::all_reduce(at::Tensor& t, reduction how) {
  if (t.numel() > 0)
    wait(*start_all_reduce(t, how));
}

void collectives::broadcast(at::Tensor& t, int root) {
  if (t.numel() > 0)
    wait(*start_broadcast(t, root));
}

void collectives::all_gather(const at::Tensor& part, at::Tensor& whole) {
  ensure(whole.numel() == part.numel() * size(), "all_gather: the whole is not as long as its parts");
  auto own = whole.narrow(0, rank() * part.size(0), part.size(0));
  own.copy_(part);
  for (int r = 0; r < size(); ++r) {
    auto piece = whole.narrow(0, r * part.size(0), part.size(0));
    broadcast(piece, r);
  }
}

void collectives::reduce_scatter(const at::Tensor& whole, at::Tensor& part) {
  ensure(whole.numel() == part.numel() * size(),
         "reduce_scatter: the whole is not as long as its parts");
  if (part.numel() == 0)
    return;
  auto sums = whole.clone();
  std::vector<std::unique_ptr<pending>> all;
  for (int r = 0; r < size(); ++r)
    all.push_back(start_reduce(sums.narrow(0, r * part.size(0), part.size(0)), r));
  for (auto& p : all)
    wait(*p);
  part.copy_(sums.narrow(0, rank() * part.size(0), part.size(0)));
}

void collectives::barrier() { sum(0); }

double collectives::sum(double x) {
  auto t = at::tensor({x}, at::kDouble);
  all_reduce(t);
  return t.item<double>();
}

double collectives::largest(double x) {
  auto t = at::tensor({x}, at::kDouble);
  all_reduce(t, reduction::largest);
  return t.item<double>();
}

namespace {

/// What the ranks of one process meet at. An operation begins when all have come, and ends when all
/// have taken the result.
struct meeting {
  std::mutex guard;
  std::condition_variable changed;
  std::vector<at::Tensor> brought;
  std::size_t here = 0, left = 0;
  bool lost = false;
  std::chrono::milliseconds timeout{};

  template <class Ready>
  void wait_until(std::unique_lock<std::mutex>& lock, Ready ready) {
    changed.wait_for(lock, timeout, [&] { return lost || ready(); });
    if (!ready()) {
      lost = true;
      changed.notify_all();
      throw rank_lost("a rank of the group is gone, or did not come within "
                      + std::to_string(timeout.count()) + " ms");
    }
  }

  /// `work` is done once, by the last to come, on what all brought.
  template <class Work>
  void meet(std::size_t rank, const at::Tensor& t, Work work) {
    std::unique_lock lock(guard);
    wait_until(lock, [&] { return left == 0; }); // the operation before is over
    brought[rank] = t;
    if (++here == brought.size()) {
      at::NoGradGuard no_grad;
      work(brought);
      left = brought.size();
      here = 0;
      changed.notify_all();
    } else {
      wait_until(lock, [&] { return left > 0; });
    }
    brought[rank] = at::Tensor();
    if (--left == 0)
      changed.notify_all();
  }
};

class local_rank final : public collectives {
public:
  local_rank(std::shared_ptr<meeting> at, int rank) : at_(std::move(at)), rank_(rank) {}
  ~local_rank() override { abandon(); }

  void abandon() override {
    const std::lock_guard lock(at_->guard);
    at_->lost = true;
    at_->changed.notify_all();
  }
  void check() override {
    const std::lock_guard lock(at_->guard);
    if (at_->lost)
      throw rank_lost("a rank of the group is gone");
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(at_->brought.size()); }

  std::unique_ptr<pending> start_all_reduce(at::Tensor t, reduction how) override {
    return later(std::move(t), [how](std::vector<at::Tensor>& all) {
      auto result = all[0].clone();
      for (std::size_t i = 1; i < all.size(); ++i)
        how == reduction::sum ? result.add_(all[i])
                              : result.copy_(at::maximum(result, all[i]));
      for (auto& x : all)
        x.copy_(result);
    });
  }
  std::unique_ptr<pending> start_reduce(at::Tensor t, int root) override {
    return later(std::move(t), [root](std::vector<at::Tensor>& all) {
      auto& to = all[static_cast<std::size_t>(root)];
      for (auto& x : all)
        if (!x.is_same(to))
          to.add_(x);
    });
  }
  std::unique_ptr<pending> start_broadcast(at::Tensor t, int root) override {
    return later(std::move(t), [root](std::vector<at::Tensor>& all) {
      for (auto& x : all)
        x.copy_(all[static_cast<std::size_t>(root)]);
    });
  }

private:
  struct deed final : pending {
    std::function<void()> run;
    void wait() override { run(); }
  };

  /// Done when it is waited for: operations are waited for in the order in which they were started.
  std::unique_ptr<pending> later(at::Tensor t,
                                 std::function<void(std::vector<at::Tensor>&)> work) {
    auto d = std::make_unique<deed>();
    d->run = [this, t = std::move(t), work = std::move(work)] {
      at_->meet(static_cast<std::size_t>(rank_), t, work);
    };
    return d;
  }

  std::shared_ptr<meeting> at_;
  int rank_;
};

} // namespace

std::vector<std::unique_ptr<collectives>> local_collectives(int n,
                                                            std::chrono::milliseconds timeout) {
  auto at = std::make_shared<meeting>();
  at->brought.resize(static_cast<std::size_t>(n));
  at->timeout = timeout;
  std::vector<std::unique_ptr<collectives>> ranks;
  for (int r = 0; r < n; ++r)
    ranks.push_back(std::make_unique<local_rank>(at, r));
  return ranks;
}

} // namespace millrace::trainer
