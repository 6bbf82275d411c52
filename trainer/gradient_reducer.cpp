#include "trainer/gradient_reducer.hpp"

#include "runtime/error.hpp"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>

namespace millrace::trainer {

flat_range owned_range(std::int64_t elements, int rank, int ranks) {
  return {elements * rank / ranks, elements * (rank + 1) / ranks};
}

std::vector<gradient_bucket> gradient_buckets(std::int64_t elements, std::int64_t bytes,
                                              int owners) {
  std::vector<gradient_bucket> buckets;
  const auto most = std::max<std::int64_t>(1, bytes / static_cast<std::int64_t>(sizeof(float)));
  for (int r = std::max(owners, 1); r-- > 0;) {
    const auto part = owned_range(elements, r, std::max(owners, 1));
    for (auto end = part.end; end > part.begin;) {
      const auto begin = std::max(part.begin, end - most);
      buckets.push_back({begin, end, owners > 0 ? r : -1});
      end = begin;
    }
  }
  return buckets;
}

struct gradient_reducer::state {
  collectives& data;
  at::Tensor gradient;
  std::vector<gradient_bucket> buckets;
  std::vector<std::vector<std::size_t>> of_parameter; ///< buckets that it lies in
  std::vector<int> parameters_of;                     ///< of each bucket
  std::vector<int> missing; ///< parameters whose gradient is not there yet, by bucket
  std::size_t next = 0;     ///< bucket to leave
  bool armed = false;
  std::vector<std::unique_ptr<collectives::pending>> under_way;

  explicit state(collectives& d) : data(d) {}

  void send() {
    const auto& b = buckets[next++];
    auto part = gradient.narrow(0, b.begin, b.end - b.begin);
    under_way.push_back(b.owner < 0 ? data.start_all_reduce(part, reduction::sum)
                                    : data.start_reduce(part, b.owner));
  }

  /// Always in the same order, whatever order backward has on this rank.
  void arrived(std::size_t parameter) {
    if (!armed)
      return;
    for (auto b : of_parameter[parameter])
      --missing[b];
    while (next < buckets.size() && missing[next] == 0)
      send();
  }
};

namespace {

struct on_gradient final : torch::autograd::PostAccumulateGradHook {
  std::function<void()> then;
  void operator()(const torch::autograd::Variable&) override { then(); }
};

} // namespace

gradient_reducer::gradient_reducer(model::transformer& network, collectives& data, bool sharded,
                                   std::int64_t bucket_bytes)
    : state_(std::make_shared<state>(data)) {
  auto& s = *state_;
  s.gradient = network.flat_gradient();
  s.buckets = gradient_buckets(s.gradient.numel(), bucket_bytes, sharded ? data.size() : 0);
  s.parameters_of.assign(s.buckets.size(), 0);
  const auto base = network.flat().storage_offset();
  for (const auto& p : network.parameters()) {
    const auto begin = p.value.storage_offset() - base, end = begin + p.value.numel();
    auto& in = s.of_parameter.emplace_back();
    for (std::size_t b = 0; b < s.buckets.size(); ++b)
      if (s.buckets[b].begin < end && begin < s.buckets[b].end) {
        in.push_back(b);
        ++s.parameters_of[b];
      }
  }
  for (std::size_t i = 0; i < network.parameters().size(); ++i) {
    auto hook = std::make_unique<on_gradient>();
    hook->then = [weak = std::weak_ptr<state>(state_), i] {
      if (auto alive = weak.lock())
        alive->arrived(i);
    };
    torch::autograd::impl::set_post_acc_grad_hooks(network.parameters()[i].value, std::move(hook));
  }
}

gradient_reducer::~gradient_reducer() = default;

void gradient_reducer::arm() {
  state_->missing = state_->parameters_of;
  state_->armed = true;
}

void gradient_reducer::finish() {
  auto& s = *state_;
  s.armed = false;
  while (s.next < s.buckets.size())
    s.send();
  for (auto& p : s.under_way)
    s.data.wait(*p);
  s.under_way.clear();
  s.next = 0;
}

void sum_partial_gradients(model::transformer& network) {
  const auto& group = network.group();
  if (!group)
    return;
  for (const auto& p : network.parameters()) {
    const auto slice = model::slice_of(network.whole_config(), p.name, group->rank, group->size);
    if (slice.partial_gradient || (group->sequence && slice.dimension < 0)) {
      auto g = p.value.grad();
      group->sum(g);
    }
  }
}

} // namespace millrace::trainer
