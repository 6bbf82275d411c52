#include "trainer/old_logit_worker.hpp"

#include "runtime/config/settings.hpp"
#include "trainer/old_logit_scoring.hpp"
#include "trainer/stopwatch.hpp"
#include "trainer/version_ring.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <list>
#include <set>
#include <unordered_map>
#include <utility>

namespace millrace::trainer {

struct old_logit_worker::parts {
  struct record {
    scored_group group;
    std::vector<std::vector<float>> logp; ///< by rollout and token
    std::set<std::int32_t> missing;       ///< versions not computed yet
  };

  model::transformer network; ///< holds the weights of `loaded`
  version loaded = no_version;
  std::shared_ptr<version_ring> versions;
  scoring_options how;
  int threads;
  std::int32_t eta;
  std::list<record> records; ///< in order of arrival
  std::unordered_map<std::int64_t, std::list<record>::iterator> by_group;
  double spent = 0;

  parts(const settings& s, const model::transformer& shape, std::shared_ptr<version_ring> ring)
      : network(shape.frozen_copy()), versions(std::move(ring)),
        how(scoring_options_of(s)),
        threads(s.algorithm.dedicated.threads), eta(s.rollout.eta) {}

  [[nodiscard]] std::optional<version> next_version() const;
  [[nodiscard]] std::vector<record*> next_groups(version v);
  void compute(version v, std::span<record* const> which);
};

/// The version whose weights are loaded already, if anything wants it; else what the group that
/// came first wants.
std::optional<version> old_logit_worker::parts::next_version() const {
  std::optional<version> first;
  for (const auto& r : records) {
    if (r.missing.contains(loaded.value))
      return loaded;
    if (!first && !r.missing.empty())
      first = version{*r.missing.begin()};
  }
  return first;
}

/// The first groups that want it, about a micro-batch of tokens.
std::vector<old_logit_worker::parts::record*> old_logit_worker::parts::next_groups(version v) {
  std::vector<record*> out;
  std::int64_t tokens = 0;
  for (auto& r : records) {
    if (!r.missing.contains(v.value))
      continue;
    for (const auto& x : r.group.rollouts)
      tokens += static_cast<std::int64_t>(x.tokens.size());
    if (!out.empty() && tokens > how.micro_batch_tokens)
      break;
    out.push_back(&r);
  }
  return out;
}

void old_logit_worker::parts::compute(version v, std::span<record* const> which) {
  std::vector<training_sequence> sequences;
  std::vector<std::vector<float>*> into;
  std::vector<std::size_t> all;
  for (std::size_t g = 0; g < which.size(); ++g)
    for (std::size_t i = 0; i < which[g]->group.rollouts.size(); ++i) {
      const auto& r = which[g]->group.rollouts[i];
      all.push_back(sequences.size());
      sequences.push_back({r.id, static_cast<std::int32_t>(g), r.reward, r.tokens,
                           r.behaviour_logp, r.versions});
      into.push_back(&which[g]->logp[i]);
    }
  score_version(network, v, sequences, all, how,
                [&](std::size_t s, std::size_t t, float logp) { (*into[s])[t] = logp; });
}

old_logit_worker::old_logit_worker(const settings& s, const model::transformer& shape,
                                   std::shared_ptr<version_ring> versions)
    : parts_(std::make_unique<parts>(s, shape, std::move(versions))) {}

old_logit_worker::~old_logit_worker() = default;

void old_logit_worker::add(std::span<const scored_group> groups) {
  for (const auto& g : groups) {
    if (parts_->by_group.contains(g.group))
      continue;
    parts::record r{g, {}, {}};
    for (const auto& x : g.rollouts) {
      r.logp.emplace_back(x.tokens.size(), unknown_logp);
      for (auto v : x.versions)
        if (v >= 0)
          r.missing.insert(v);
    }
    parts_->records.push_back(std::move(r));
    parts_->by_group[g.group] = std::prev(parts_->records.end());
  }
}

bool old_logit_worker::work() {
  auto& p = *parts_;
  auto v = p.next_version();
  if (!v)
    return false;
  stopwatch timer(p.spent);
  at::set_num_threads(p.threads);
  auto which = p.next_groups(*v);
  if (p.loaded == *v || p.versions->load(*v, p.network.flat())) {
    p.loaded = *v;
    p.compute(*v, which);
  }
  // Of a version that isn't kept any more nothing will be known.
  for (auto* r : which)
    r->missing.erase(v->value);
  return true;
}

old_logit_supply old_logit_worker::take(const train_batch& batch) {
  auto& p = *parts_;
  old_logit_supply out;
  for (const auto& g : batch.groups) {
    auto found = p.by_group.find(g.group);
    if (found == p.by_group.end())
      continue;
    const auto& r = *found->second;
    for (const auto& x : g.rollouts)
      for (std::size_t i = 0; i < r.group.rollouts.size(); ++i) {
        const auto& had = r.group.rollouts[i];
        // Versions differ where the buffer has masked old tokens; the text must be the same.
        if (had.id == x.id && had.tokens == x.tokens)
          out.known.push_back({x.id, r.logp[i]});
      }
    p.records.erase(found->second);
    p.by_group.erase(found);
  }
  // Groups that were dropped never come: when all their tokens are beyond η they are not waited for.
  for (auto r = p.records.begin(); r != p.records.end();) {
    auto youngest = no_version;
    for (const auto& x : r->group.rollouts)
      youngest = std::max(youngest, x.youngest());
    if (staleness(batch.training_from, youngest) <= p.eta) {
      ++r;
      continue;
    }
    p.by_group.erase(r->group.group);
    r = p.records.erase(r);
  }
  out.hidden_s = std::exchange(p.spent, 0.0);
  return out;
}

std::size_t old_logit_worker::waiting() const {
  return static_cast<std::size_t>(
    std::count_if(parts_->records.begin(), parts_->records.end(),
                  [](const auto& r) { return !r.missing.empty(); }));
}

} // namespace millrace::trainer
