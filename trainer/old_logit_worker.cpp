#include "trainer/old_logit_worker.hpp"

#include "runtime/config/settings.hpp"
#include "runtime/model/torch_device.hpp"
#include "runtime/old_logit_question.hpp"
#include "trainer/full_device.hpp"
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

namespace {

/// A network like the trained one, where algorithm.dedicated.device wants it.
model::transformer network_like(const model::model_config& shape, const settings& s) {
  static constexpr auto option = "algorithm.dedicated.device";
  auto where = s.algorithm.dedicated.device;
  auto last = where == compute_device::cuda ? model::cuda_devices(option) - 1 : 0;
  const auto device = model::torch_device(where, last, option);
  return within_worker_memory(s, [&] {
    model::transformer out(shape, at::TensorOptions(device));
    out.requires_gradient(false);
    out.compute_in(s.trainer.compute == compute_dtype::bf16 ? at::kBFloat16 : at::kFloat);
    return out;
  });
}

} // namespace

struct old_logit_worker::parts {
  struct record {
    scored_group group;
    std::vector<std::uint64_t> fingerprints; ///< by rollout
    std::vector<std::vector<float>> logp; ///< by rollout and token
    std::set<std::int32_t> missing;       ///< versions not computed yet
    bool wanted = false;                  ///< the trainer waits for it
  };

  settings s;
  model::transformer network; ///< holds the weights of `loaded`
  version loaded = no_version;
  std::shared_ptr<version_ring> versions;
  scoring_options how;
  int threads;
  std::int32_t eta;
  std::size_t room; ///< for so many groups
  std::int64_t at_a_time; ///< tokens: a question is answered no sooner than these are done
  std::list<record> records; ///< wanted ones first, then in order of arrival
  std::unordered_map<std::int64_t, std::list<record>::iterator> by_group;
  double spent = 0; ///< off the trainer's path, since the last take()
  double awaited = 0;
  bool trainer_waits = false;
  old_logit_progress total;

  parts(const settings& given, const model::model_config& shape, std::shared_ptr<version_ring> ring)
      : s(given), network(network_like(shape, s)), versions(std::move(ring)),
        how(scoring_options_of(s)),
        threads(s.algorithm.dedicated.threads), eta(s.rollout.eta),
        room(2 * static_cast<std::size_t>((s.rollout.eta + 1) * s.rollout.batch_size
                                            / std::max(1, s.rollout.group_size)
                                          + 1)),
        at_a_time(std::min(how.micro_batch_tokens,
                           std::max<std::int64_t>(512, how.micro_batch_tokens / 8))) {}

  void add(const scored_group& g);
  void remove(std::list<record>::iterator r);
  [[nodiscard]] std::optional<version> next_version() const;
  [[nodiscard]] std::optional<version> next_version(bool wanted) const;
  [[nodiscard]] std::vector<record*> next_groups(version v);
  void compute(version v, std::span<record* const> which);
  [[nodiscard]] const record* find(std::int64_t group) const;
  [[nodiscard]] bool trains_on(std::int32_t v, version training_from) const;
  void count(const record& r, std::size_t i, version training_from);
};

void old_logit_worker::parts::add(const scored_group& g) {
  record r{g, {}, {}, {}};
  for (auto& x : r.group.rollouts) {
    r.fingerprints.push_back(fingerprint_of(x));
    r.logp.emplace_back(x.tokens.size(), unknown_logp);
    x.behaviour_logp.assign(x.tokens.size(), 0); // nobody asks for it here
    for (auto v : x.versions)
      if (v >= 0)
        r.missing.insert(v);
  }
  records.push_back(std::move(r));
  by_group[g.group] = std::prev(records.end());
}

void old_logit_worker::parts::remove(std::list<record>::iterator r) {
  by_group.erase(r->group.group);
  records.erase(r);
}

std::optional<version> old_logit_worker::parts::next_version() const {
  auto v = next_version(true);
  return v ? v : next_version(false);
}

/// The version whose weights are loaded already, if anything wants it; else what the group that
/// came first wants. Versions that have not come yet are left for later.
std::optional<version> old_logit_worker::parts::next_version(bool wanted) const {
  std::optional<version> first;
  auto newest = versions->newest();
  for (const auto& r : records) {
    if (r.wanted != wanted || r.missing.empty())
      continue;
    if (r.missing.contains(loaded.value))
      return loaded;
    if (auto oldest = version{*r.missing.begin()}; !first && oldest <= newest)
      first = oldest;
  }
  return first;
}

/// The first groups that want it, about as many tokens as are computed at a time.
std::vector<old_logit_worker::parts::record*> old_logit_worker::parts::next_groups(version v) {
  std::vector<record*> out;
  std::int64_t tokens = 0;
  for (auto& r : records) {
    if (!r.missing.contains(v.value))
      continue;
    for (const auto& x : r.group.rollouts)
      tokens += static_cast<std::int64_t>(x.tokens.size());
    if (!out.empty() && tokens > at_a_time)
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
  ++total.forwards;
}

const old_logit_worker::parts::record* old_logit_worker::parts::find(std::int64_t group) const {
  auto found = by_group.find(group);
  return found == by_group.end() ? nullptr : &*found->second;
}

/// Sampled, and within η.
bool old_logit_worker::parts::trains_on(std::int32_t v, version training_from) const {
  return v != no_version.value && staleness(training_from, {v}) <= eta;
}

/// Of a rollout that is trained on now.
void old_logit_worker::parts::count(const record& r, std::size_t i, version training_from) {
  const auto& versions = r.group.rollouts[i].versions;
  for (std::size_t t = 0; t < versions.size(); ++t)
    if (trains_on(versions[t], training_from))
      ++(is_known(r.logp[i][t])            ? total.known
         : r.missing.contains(versions[t]) ? total.late
                                           : total.no_weights);
}

old_logit_worker::old_logit_worker(const settings& s, const model::model_config& shape,
                                   std::shared_ptr<version_ring> versions)
    : parts_(std::make_unique<parts>(s, shape, std::move(versions))) {}

old_logit_worker::~old_logit_worker() = default;

void old_logit_worker::add(std::span<const scored_group> groups) {
  auto& p = *parts_;
  for (const auto& g : groups)
    if (!p.by_group.contains(g.group))
      p.add(g);
  for (auto r = p.records.begin(); r != p.records.end() && p.records.size() > p.room;) {
    auto next = std::next(r);
    if (!r->wanted)
      p.remove(r);
    r = next;
  }
}

std::vector<std::int64_t> old_logit_worker::unknown(const old_logit_question& asked) const {
  std::set<std::int64_t> groups;
  for (const auto& x : asked.rollouts)
    if (parts_->find(x.id.group) == nullptr)
      groups.insert(x.id.group);
  return {groups.begin(), groups.end()};
}

void old_logit_worker::want(const old_logit_question& asked) {
  auto& p = *parts_;
  p.trainer_waits = true;
  for (auto x = asked.rollouts.rbegin(); x != asked.rollouts.rend(); ++x) {
    auto found = p.by_group.find(x->id.group);
    if (found == p.by_group.end() || found->second->wanted)
      continue;
    auto r = found->second;
    r->wanted = true;
    p.records.splice(p.records.begin(), p.records, r);
    std::erase_if(r->missing, [&](auto v) { return !p.trains_on(v, asked.training_from); });
  }
}

bool old_logit_worker::settled(const old_logit_question& asked) const {
  return std::all_of(asked.rollouts.begin(), asked.rollouts.end(), [&](const asked_rollout& x) {
    const auto* r = parts_->find(x.id.group);
    return r == nullptr || r->missing.empty() || *r->missing.begin() >= asked.training_from.value;
  });
}

bool old_logit_worker::can_work() const { return parts_->next_version().has_value(); }

bool old_logit_worker::work() {
  auto& p = *parts_;
  auto v = p.next_version();
  if (!v)
    return false;
  stopwatch timer(p.trainer_waits ? p.awaited : p.spent);
  at::set_num_threads(p.threads);
  auto which = p.next_groups(*v);
  within_worker_memory(p.s, [&] {
    if (p.loaded != *v)
      p.loaded = p.versions->load(*v, p.network.flat()) ? *v : no_version;
    if (p.loaded == *v)
      p.compute(*v, which);
  });
  // Of a version that isn't kept any more nothing will be known.
  for (auto* r : which)
    r->missing.erase(v->value);
  return true;
}

old_logit_supply old_logit_worker::take(const old_logit_question& asked) {
  auto& p = *parts_;
  old_logit_supply out;
  for (const auto& x : asked.rollouts) {
    const auto* r = p.find(x.id.group);
    std::size_t i = 0;
    while (r != nullptr && i < r->group.rollouts.size()
           && (r->group.rollouts[i].id != x.id || r->fingerprints[i] != x.fingerprint))
      ++i;
    if (r != nullptr && i < r->group.rollouts.size()) {
      p.count(*r, i, asked.training_from);
      out.known.push_back({x.id, r->logp[i]});
    } else {
      p.total.late += x.trained_tokens;
    }
  }
  for (const auto& x : asked.rollouts)
    if (auto found = p.by_group.find(x.id.group); found != p.by_group.end())
      p.remove(found->second);
  // Groups that were dropped never come: when all their tokens are beyond η they are not waited for.
  for (auto r = p.records.begin(); r != p.records.end();) {
    auto youngest = no_version;
    for (const auto& x : r->group.rollouts)
      youngest = std::max(youngest, x.youngest());
    auto gone = staleness(asked.training_from, youngest) > p.eta;
    r->wanted = false;
    auto next = std::next(r);
    if (gone)
      p.remove(r);
    r = next;
  }
  p.trainer_waits = false;
  p.total.busy_s += p.spent + std::exchange(p.awaited, 0.0);
  out.hidden_s = std::exchange(p.spent, 0.0);
  return out;
}

std::size_t old_logit_worker::waiting() const {
  return static_cast<std::size_t>(
    std::count_if(parts_->records.begin(), parts_->records.end(),
                  [](const auto& r) { return !r.missing.empty(); }));
}

old_logit_progress old_logit_worker::progress() const {
  auto out = parts_->total;
  out.waiting = static_cast<std::int64_t>(waiting());
  out.done = static_cast<std::int64_t>(parts_->records.size()) - out.waiting;
  out.busy_s += parts_->spent + parts_->awaited;
  auto used = parts_->versions->usage();
  out.versions = static_cast<std::int64_t>(parts_->versions->versions().size());
  out.memory_bytes = used.memory_bytes + used.device_bytes;
  out.disk_bytes = used.disk_bytes;
  return out;
}

} // namespace millrace::trainer
