#include "trainer/old_logit_exact.hpp"

#include "runtime/error.hpp"
#include "trainer/collectives.hpp"
#include "trainer/old_logit_average.hpp"
#include "trainer/old_logit_gathering.hpp"
#include "trainer/old_logit_scoring.hpp"
#include "trainer/old_logit_store.hpp"
#include "trainer/old_logit_worker.hpp"
#include "trainer/parallel.hpp"
#include "trainer/version_ring.hpp"

#include <algorithm>
#include <optional>
#include <unistd.h>
#include <unordered_map>
#include <utility>

namespace millrace::trainer {

namespace {

std::filesystem::path folder_for(const snapshot_settings& s, const rank_mesh* mesh) {
  if (!s.folder.empty())
    return mesh && mesh->rank > 0 ? s.folder + "-rank-" + std::to_string(mesh->rank) : s.folder;
  return std::filesystem::temp_directory_path()
         / ("millrace-versions-" + std::to_string(::getuid()));
}

} // namespace

ring_limits kept_version_limits(const settings& s, const rank_mesh* mesh) {
  const auto& a = s.algorithm;
  auto kept = a.snapshot.versions > 0 ? a.snapshot.versions : s.rollout.eta + 1;
  ring_limits limits{kept, a.snapshot.device_bytes, a.snapshot.memory_bytes, a.snapshot.disk_bytes,
                     folder_for(a.snapshot, mesh)};
  if (a.old_logits == old_logits_source::snapshot)
    limits.versions = std::max(1, kept - 1); // the current version is θ, while it is needed
  if (a.old_logits == old_logits_source::interrupt)
    limits.versions = std::max(1, a.interrupt.slots);
  return limits;
}

namespace {

/// What the three have in common: kept versions and the fallback.
class kept_versions : public old_logits {
public:
  kept_versions(const settings& s, const model::transformer& network, rank_mesh* mesh)
      : settings_(s), mesh_(mesh), share_(mesh),
        ring_(std::make_shared<version_ring>(kept_version_limits(s, mesh))), how_(scoring_options_of(s)) {
    if (s.algorithm.old_logits_fallback == old_logits_fallback::ewma)
      average_.emplace(s.algorithm.ewma, network);
  }

  old_log_probs before_step(const old_logits_request& r) final {
    old_log_probs out;
    old_logit_gathering batch(r.scorer, share_);
    std::vector<std::size_t> all(r.first_minibatch.begin(), r.first_minibatch.end());
    all.insert(all.end(), r.others.begin(), r.others.end());
    from_before(batch, r, out);
    for (const auto& [v, tokens] : batch.missing_versions())
      if (const auto* network = weights_of(v, r))
        fill(batch, v, all, *network, r, own_route(), out);
    fall_back(batch, all, r, out);
    if (share_.ranks > 1)
      batch.exchange(mesh_->data());
    std::move(batch).write(out);
    out.costs.hidden_s = r.supply.hidden_s;
    out.costs.waited_s = r.supply.waited_s;
    keep(r);
    auto used = ring_->usage();
    out.costs.versions = static_cast<std::int64_t>(ring_->versions().size());
    out.costs.device_bytes = used.device_bytes;
    out.costs.memory_bytes = used.memory_bytes + other_bytes();
    out.costs.disk_bytes = used.disk_bytes;
    out.costs.copying_s = used.seconds - copied_before_;
    copied_before_ = used.seconds;
    tell_once(out);
    return out;
  }

  bool after_step(const model::transformer& theta, version now, const kept_shares& shares) override {
    static_cast<void>(now);
    return average_ && average_->after_step(theta, shares);
  }

  std::vector<tensor_view> tensors() const final {
    return average_ ? average_->tensors() : std::vector<tensor_view>{};
  }
  nlohmann::json state() const final {
    return average_ ? average_->state() : nlohmann::json::object();
  }
  void restore(const nlohmann::json& state, const model::transformer&) final {
    if (average_)
      average_->restore(state);
  }

protected:
  /// Route 1: what was computed beforehand.
  virtual void from_before(old_logit_gathering& batch, const old_logits_request& r,
                           old_log_probs& out) = 0;
  /// Of tokens that this step computes.
  [[nodiscard]] virtual old_logit_route own_route() const { return old_logit_route::snapshot; }
  /// Before the first update: θ is still the version trained from.
  virtual void keep(const old_logits_request& r) = 0;
  [[nodiscard]] virtual std::int64_t other_bytes() const { return average_ ? average_->bytes() : 0; }

  /// Null when `v` is not to be had. What it gives is valid until the next call.
  const model::transformer* weights_of(version v, const old_logits_request& r) {
    if (v == r.training_from)
      return &r.network;
    auto held = ring_->holds(v);
    if (held) {
      if (!scratch_)
        scratch_.emplace(r.network.frozen_copy());
      held = ring_->load(v, scratch_->flat());
    }
    // The ranks of a replica compute together, or none does: one's disk may have refused.
    if (mesh_ && mesh_->grid.tp > 1)
      held = mesh_->tensor().largest(held ? 0 : 1) == 0;
    return held ? &*scratch_ : nullptr;
  }

  void fill(old_logit_gathering& batch, std::optional<version> v,
            std::span<const std::size_t> which, const model::transformer& network,
            const old_logits_request& r, old_logit_route route, old_log_probs& out) {
    auto tokens = score_version(
      network, v, r.scorer.sequences(), which, how_,
      [&](std::size_t s, std::size_t t, float logp) { batch.set(s, t, logp, route); },
      [&](std::size_t s, std::size_t t) { return batch.missing(s, t); });
    out.costs.forwards += tokens > 0 ? 1 : 0;
    out.costs.tokens += tokens;
  }

  settings settings_;
  rank_mesh* mesh_;
  rank_share share_;
  std::shared_ptr<version_ring> ring_;
  scoring_options how_;
  std::optional<old_logit_average> average_;

private:
  void fall_back(old_logit_gathering& batch, std::span<const std::size_t> all,
                 const old_logits_request& r, old_log_probs& out) {
    auto missing = batch.missing_versions();
    if (missing.empty())
      return;
    std::int64_t tokens = 0;
    for (const auto& [v, n] : missing)
      tokens += n;
    if (std::exchange(told_fallback_, true))
      return serve(batch, all, r, out); // from then on the shares by route tell
    out.remarks.push_back(
      "old log-probs, training from " + to_string(r.training_from) + ": " + std::to_string(tokens)
      + " tokens of " + to_string(missing.rbegin()->first)
      + (missing.size() > 1 ? " to " + to_string(missing.begin()->first) : "") + " are served by \""
      + (average_ ? "ewma" : "recompute") + "\", as " + why_missing()
      + "; old_logits_share_ in metrics.jsonl counts such tokens");
    serve(batch, all, r, out);
  }

  [[nodiscard]] std::string why_missing() const {
    if (const auto* node = settings_.cluster.old_logit_node())
      return "node " + node->name + " has not computed them in time, or not had their weights";
    auto versions = ring_->versions();
    return "their weights are not kept; kept "
           + (versions.empty() ? "is none"
              : versions.size() == 1
                ? "is " + to_string(versions.front())
                : "are " + to_string(versions.front()) + " to " + to_string(versions.back()))
           + " and the current one";
  }

  void serve(old_logit_gathering& batch, std::span<const std::size_t> all,
             const old_logits_request& r, old_log_probs& out) {
    fill(batch, std::nullopt, all, average_ ? average_->network() : r.network, r,
         average_ ? old_logit_route::ewma : old_logit_route::recompute, out);
  }

  void tell_once(old_log_probs& out) {
    auto why = ring_->given_up();
    if (!why.empty() && why != told_)
      out.remarks.push_back(why);
    told_ = std::move(why);
  }

  std::optional<model::transformer> scratch_;
  double copied_before_ = 0;
  std::string told_; ///< of the versions that are given up
  bool told_fallback_ = false;
};

/// The last versions are kept, and each step makes one forward per version present in its batch.
class snapshot final : public kept_versions {
public:
  using kept_versions::kept_versions;

private:
  void from_before(old_logit_gathering&, const old_logits_request&, old_log_probs&) override {}
  void keep(const old_logits_request& r) override {
    if (settings_.rollout.eta > 0 && settings_.algorithm.snapshot.versions != 1
        && !ring_->holds(r.training_from))
      ring_->put(r.training_from, r.network.flat());
  }
};

/// The same, but an old_logit_worker beside the trainer, or on a node of its own, has computed most
/// before the batch comes.
class dedicated final : public kept_versions {
public:
  dedicated(const settings& s, const model::transformer& network, rank_mesh* mesh)
      : kept_versions(s, network, mesh), elsewhere_(s.cluster.old_logit_node() != nullptr) {}

  bool after_step(const model::transformer& theta, version now,
                  const kept_shares& shares) override {
    auto reset = kept_versions::after_step(theta, now, shares);
    if (!elsewhere_)
      ring_->put(now, theta.flat());
    return reset;
  }

  std::shared_ptr<old_logit_worker> worker(const model::transformer& network,
                                           version now) override {
    if (elsewhere_)
      return nullptr;
    if (!ring_->holds(now))
      ring_->put(now, network.flat());
    return std::make_shared<old_logit_worker>(settings_, network.config(), ring_);
  }

private:
  void from_before(old_logit_gathering& batch, const old_logits_request& r,
                   old_log_probs&) override {
    std::unordered_map<rollout_id, const old_log_prob_list*> known;
    for (const auto& k : r.supply.known)
      known[k.id] = &k;
    auto sequences = r.scorer.sequences();
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      auto k = known.find(sequences[s].id);
      if (k == known.end() || k->second->logp.size() != sequences[s].tokens.size())
        continue;
      for (std::size_t t = 0; t < sequences[s].tokens.size(); ++t)
        if (auto logp = k->second->logp[t]; is_known(logp) && batch.missing(s, t))
          batch.set(s, t, logp, old_logit_route::dedicated);
    }
  }
  /// Where there is no worker: on other ranks.
  void keep(const old_logits_request& r) override {
    if (!elsewhere_ && !ring_->holds(r.training_from))
      ring_->put(r.training_from, r.network.flat());
  }

  bool elsewhere_; ///< an old-logit node keeps the versions
};

/// Before a version is replaced, the tokens that it has sampled so far, in flight and buffered, are
/// scored with it; those that generators still sample with it until they have all gone on are
/// scored at the next step, from the one slot (or more) in which its weights are kept meanwhile.
class interrupt final : public kept_versions {
public:
  using kept_versions::kept_versions;

private:
  void from_before(old_logit_gathering& batch, const old_logits_request& r,
                   old_log_probs& out) override {
    score_in_flight(r, out);
    auto sequences = r.scorer.sequences();
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      old_logit_store::key key(sequences[s].id, sequences[s].tokens, sequences[s].versions);
      for (std::size_t t = 0; t < sequences[s].tokens.size(); ++t)
        if (batch.missing(s, t))
          if (auto logp = store_.find(key, t))
            batch.set(s, t, *logp, old_logit_route::interrupt);
      store_.forget(sequences[s].id);
    }
  }

  void score_in_flight(const old_logits_request& r, old_log_probs& out) {
    std::vector<training_sequence> sequences;
    std::vector<old_logit_store::key> keys;
    std::vector<std::size_t> all;
    std::unordered_map<std::int64_t, std::int32_t> groups;
    for (const auto& x : r.supply.in_flight) {
      if (!share_.has(x.id))
        continue;
      auto group = groups.try_emplace(x.id.group, static_cast<std::int32_t>(groups.size()));
      all.push_back(sequences.size());
      sequences.push_back({x.id, group.first->second, x.reward, x.tokens, x.behaviour_logp,
                           x.versions});
      keys.emplace_back(x.id, x.tokens, x.versions);
    }
    auto unknown = [&](std::size_t s, std::size_t t) { return !store_.holds(keys[s], t); };
    for (auto v : versions_present(sequences, all)) {
      const auto* network = weights_of(v, r);
      if (network == nullptr)
        continue; // told when the token is trained on
      auto tokens = score_version(
        *network, v, sequences, all, how_,
        [&](std::size_t s, std::size_t t, float logp) { store_.put(keys[s], t, logp); }, unknown);
      out.costs.forwards += tokens > 0 ? 1 : 0;
      out.costs.tokens += tokens;
    }
    store_.forget_below({r.training_from.value - settings_.rollout.eta});
  }

  [[nodiscard]] old_logit_route own_route() const override { return old_logit_route::interrupt; }
  [[nodiscard]] std::int64_t other_bytes() const override {
    return kept_versions::other_bytes() + store_.bytes();
  }

  void keep(const old_logits_request& r) override {
    ring_->forget_below(r.supply.oldest_sampling);
    if (settings_.algorithm.interrupt.slots > 0 && !ring_->holds(r.training_from))
      ring_->put(r.training_from, r.network.flat());
  }

  old_logit_store store_;
};

} // namespace

std::unique_ptr<old_logits> make_exact_old_logits(const settings& s,
                                                  const model::transformer& network,
                                                  rank_mesh* mesh) {
  switch (s.algorithm.old_logits) {
    case old_logits_source::snapshot: return std::make_unique<snapshot>(s, network, mesh);
    case old_logits_source::dedicated: return std::make_unique<dedicated>(s, network, mesh);
    case old_logits_source::interrupt: return std::make_unique<interrupt>(s, network, mesh);
    default: break;
  }
  throw invariant_error("old_logits: this strategy keeps no versions");
}

} // namespace millrace::trainer
