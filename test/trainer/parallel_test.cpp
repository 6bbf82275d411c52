#include "trainer/parallel.hpp"

#include "policy_loss/token_logprobs.hpp"
#include "runtime/error.hpp"
#include "runtime/model/tensor_parallel.hpp"
#include "test/patience.hpp"
#include "test/trainer/rank_threads.hpp"
#include "test/trainer/ranks.hpp"
#include "test/trainer/scratch_folder.hpp"
#include "trainer/collectives.hpp"
#include "trainer/gradient_reducer.hpp"
#include "trainer/parallel_logprobs.hpp"
#include "trainer/policy.hpp"

#include <ATen/ATen.h>

#include <signal.h>

#include <catch2/catch.hpp>

#include <cstdlib>
#include <thread>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

namespace {

/// work(rank's collectives) on a thread for each of n ranks.
void on_ranks(int n, const std::function<void(collectives&)>& work) {
  auto ranks = local_collectives(n);
  on_threads(n, [&](int r) { work(*ranks[static_cast<std::size_t>(r)]); });
}

} // namespace

TEST_CASE("(a rank of the tests below)", "[.rank]") {
  at::set_num_threads(1);
  if (std::getenv("MILLRACE_TEST_RANK") == nullptr)
    return; // nobody's
  try {
    follow_rank(std::atoi(std::getenv("MILLRACE_TEST_RANK")), std::getenv("MILLRACE_TEST_STORE"), 300);
  } catch (const rank_lost&) {
    // Rank 0's test ends us in more than one way.
  }
}

TEST_CASE("collectives: every rank gets what all brought") {
  for (int n : {1, 2, 3}) {
    on_ranks(n, [n](collectives& c) {
      auto mine = at::arange(5, at::kFloat) + 10.0 * c.rank();
      auto sum = mine.clone(), largest = mine.clone();
      c.all_reduce(sum);
      c.all_reduce(largest, reduction::largest);
      ensure(at::allclose(sum, at::arange(5, at::kFloat) * n + 10.0 * (n * (n - 1) / 2)), "sum");
      ensure(at::equal(largest, at::arange(5, at::kFloat) + 10.0 * (n - 1)), "largest");
      auto from_last = mine.clone();
      c.broadcast(from_last, n - 1);
      ensure(at::equal(from_last, largest), "broadcast");
      auto all = at::zeros({5 * n}, at::kFloat);
      c.all_gather(mine, all);
      for (int r = 0; r < n; ++r)
        ensure(at::equal(all.narrow(0, 5 * r, 5), at::arange(5, at::kFloat) + 10.0 * r), "gather");
      auto part = at::zeros({5}, at::kFloat);
      c.reduce_scatter(all, part);
      ensure(at::allclose(part, mine * n), "reduce_scatter");
      ensure(c.sum(1) == n, "sum of numbers");
      c.barrier();
    });
  }
}

TEST_CASE("collectives: a rank that is gone fails the others, at once") {
  auto ranks = local_collectives(2);
  std::thread leaver([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ranks[1].reset();
  });
  REQUIRE_THROWS_AS(ranks[0]->barrier(), rank_lost);
  leaver.join();
  auto slow = local_collectives(2, std::chrono::milliseconds(50));
  REQUIRE_THROWS_AS(slow[0]->barrier(), rank_lost);
}

TEST_CASE("gradient buckets cover the buffer once, from its end, and respect owners") {
  random_stream random{5, stream_of("buckets")};
  for (int i = 0; i < 500; ++i) {
    auto elements = static_cast<std::int64_t>(random.below(200));
    auto bytes = static_cast<std::int64_t>(random.below(200));
    auto owners = static_cast<int>(random.below(5));
    INFO(elements << " elements, " << bytes << " bytes, " << owners << " owners");
    auto end = elements;
    for (const auto& b : gradient_buckets(elements, bytes, owners)) {
      REQUIRE(b.end == end);
      REQUIRE(b.begin < b.end);
      REQUIRE((b.end - b.begin) * 4 <= std::max<std::int64_t>(bytes, 4));
      if (owners > 0) {
        auto own = owned_range(elements, b.owner, owners);
        REQUIRE((b.begin >= own.begin && b.end <= own.end));
      }
      end = b.begin;
    }
    REQUIRE(end == 0);
  }
}

TEST_CASE("batches survive their bytes, and torn ones are told") {
  auto groups = sibling_groups(3, 5, 3, {7}, 2);
  groups[1].question = {42, "2+2=", "4"};
  groups[2].rollouts.clear();
  old_logit_supply supply{.in_flight = groups[0].rollouts, .oldest_sampling = {6},
                          .known = {{{3, 1}, {-0.5F, -1.25F}}}, .waited_s = 0.5};
  auto bytes = to_bytes(groups, supply);
  auto back = step_from_bytes(bytes);
  REQUIRE(to_bytes(back.groups, back.supply) == bytes);
  REQUIRE(back.groups[1].question.text == "2+2=");
  REQUIRE(back.groups[0].rollouts[1].behaviour_logp == groups[0].rollouts[1].behaviour_logp);
  REQUIRE(back.supply.known[0].logp == supply.known[0].logp);
  for (std::size_t n = 0; n < bytes.size(); n += 97)
    REQUIRE_THROWS_AS(step_from_bytes(bytes.substr(0, n)), invariant_error);
  auto demonstrations = some_demonstrations();
  REQUIRE(demonstrations_from_bytes(to_bytes(demonstrations))[3].tokens == demonstrations[3].tokens);
}

TEST_CASE("log-probs over a split vocabulary equal those over a whole one") {
  at::set_num_threads(1);
  auto hidden = at::sin(at::arange(9 * 6, at::kDouble)).view({9, 6});
  auto head = at::cos(at::arange(11 * 6, at::kDouble) * 0.7).view({11, 6});
  auto targets = at::arange(9, at::kLong) % 11;
  auto loss = [](const policy_loss::token_logprobs_result& r) {
    auto w = at::arange(r.logp.numel(), at::kDouble) + 1;
    return (r.logp * w).sum() + 0.3 * (r.entropy * w).sum();
  };
  for (double temperature : {1.0, 0.6}) {
    auto h = hidden.clone().requires_grad_(), w = head.clone().requires_grad_();
    auto whole = policy_loss::token_logprobs(h, w, targets, {.temperature = temperature});
    loss(whole).backward();
    on_ranks(3, [&](collectives& c) {
      auto group = std::make_shared<model::tensor_group>();
      group->rank = c.rank();
      group->size = 3;
      group->sum = [&](at::Tensor& t) { c.all_reduce(t); };
      group->largest = [&](at::Tensor& t) { c.all_reduce(t, reduction::largest); };
      auto begin = 11 * c.rank() / 3, end = 11 * (c.rank() + 1) / 3;
      auto mine = hidden.clone().requires_grad_();
      auto part = head.narrow(0, begin, end - begin).clone().requires_grad_();
      auto found = parallel_token_logprobs(mine, part, targets, temperature, begin, group, 4);
      ensure(at::allclose(found.logp, whole.logp), "logp");
      ensure(at::allclose(found.entropy, whole.entropy), "entropy");
      ensure(at::equal(found.top1, whole.top1), "top1");
      loss(found).backward();
      ensure(at::allclose(mine.grad(), h.grad()), "gradient of hidden");
      ensure(at::allclose(part.grad(), w.grad().narrow(0, begin, end - begin)), "gradient of head");
    });
  }
}

TEST_CASE("layers that compute their inner values again give the same gradients") {
  auto s = tiny_settings();
  s.trainer.micro_batch_tokens = 80;
  auto once = policy::create(s);
  s.trainer.activation_checkpointing = true;
  auto again = policy::create(s);
  auto a = take(once, 0, 2), b = take(again, 0, 2);
  REQUIRE(same_bits(a.parameters, b.parameters));
}

TEST_CASE("a model that tp does not divide is refused before anything starts") {
  auto s = grid_settings(1, 3);
  REQUIRE_THROWS_WITH(policy::create(s), Catch::Contains("trainer.parallel.tp")
                                           && Catch::Contains("2 query heads"));
}

TEST_CASE("dp, tp and both train as one process does", "[ranks]") {
  at::set_num_threads(1);
  auto alone = train_with(grid_settings(1, 1));
  SECTION("dp 2, the same bits each time") {
    auto first = train_with(grid_settings(2, 1));
    require_equal(first, alone);
    REQUIRE(same_bits(first.parameters, train_with(grid_settings(2, 1)).parameters));
  }
  SECTION("tp 2") { require_equal(train_with(grid_settings(1, 2)), alone); }
  SECTION("dp 2 x tp 2, optimiser state sharded") { require_equal(train_with(grid_settings(2, 2, true)), alone); }
}

TEST_CASE("a checkpoint goes on with another dp and tp", "[ranks]") {
  at::set_num_threads(1);
  scratch_folder dir;
  auto s = grid_settings(2, 1, true);
  {
    auto p = policy::create(s, nullptr, start_ranks(s, rank_command()));
    take(p, 0, 1);
    p.save(dir.path);
    take(p, 1, 2); // saving has changed nothing
  }
  course alone;
  {
    auto one = grid_settings(1, 1);
    auto p = policy::load(one, dir.path);
    alone = take(p, 1, 3);
  }
  auto two = grid_settings(1, 2);
  auto p = policy::load(two, dir.path, nullptr, start_ranks(two, rank_command()));
  require_equal(take(p, 1, 3), alone);
}

TEST_CASE("a rank that ends while it starts is told at once", "[ranks]") {
  settings s;
  s.trainer.parallel = {.dp = 2, .timeout_s = 1000};
  const auto began = std::chrono::steady_clock::now();
  REQUIRE_THROWS_WITH(start_ranks(s, {"/bin/false"}),
                      Catch::Contains("trainer rank 1 ended with status 1 before training began"));
  REQUIRE(std::chrono::steady_clock::now() - began < test::patience);
}

TEST_CASE("a killed rank is noticed at once, a stopped one at the time-out", "[ranks]") {
  at::set_num_threads(1);
  using clock = std::chrono::steady_clock;
  auto seconds_since = [](clock::time_point t) {
    return std::chrono::duration<double>(clock::now() - t).count();
  };
  auto s = grid_settings(2, 1);
  for (bool killed : {true, false}) {
    s.trainer.parallel.timeout_s = killed ? 1000 : 15;
    auto mesh = start_ranks(s, rank_command());
    auto id = mesh->processes()->process_ids().front();
    auto p = policy::create(s, nullptr, mesh);
    take(p, 0, 1);
    ::kill(id, SIGSTOP); // or it could answer once more
    auto began = clock::now();
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      if (killed)
        ::kill(id, SIGKILL);
    });
    REQUIRE_THROWS_AS(p.step({1}, sibling_groups(11, 6, 4, {1}, 4)), rank_lost);
    killer.join();
    auto took = seconds_since(began);
    ::kill(id, SIGKILL);
    INFO("after " << took << " s");
    REQUIRE(took < test::patience_s);
    if (!killed)
      REQUIRE(took > 5);
  }
}
