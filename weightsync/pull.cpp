#include "weightsync/pull.hpp"

#include "runtime/error.hpp"
#include "weightsync/bounced_reader.hpp"
#include "weightsync/receiver_machine.hpp"
#include "weightsync/stopwatch.hpp"
#include "weightsync/unpacker.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace millrace::weightsync {

namespace {

using kind = receiver_action::kind;

// How long a reader may sleep before should_stop is asked again.
constexpr double longest_sleep_s = 0.02;
constexpr double progress_every_s = 0.1;

} // namespace

struct puller::implementation {
  implementation(transport& carrier, std::vector<tensor_view> tensors, layout target)
    : tensors(std::move(tensors)), target(std::move(target)), unpack(this->tensors),
      reads(reader_of(carrier)) {
    register_tensors();
  }

  std::unique_ptr<reader> reader_of(transport& carrier) {
    auto direct = carrier.make_reader();
    return carrier.reads_into(memory()) ? std::move(direct)
                                        : by_way_of_host(std::move(direct), unpack.device());
  }

  void register_tensors() {
    for (const auto& t : tensors)
      reads->prepare({t.data, t.bytes()}, t.memory);
  }

  // Where the bytes of a fetch go: into the tensor itself, or into a buffer until they are proven.
  std::span<std::byte> place_for(const fetch& f, std::uint64_t ticket) {
    if (f.in_place) {
      const auto& c = f.shards[0].copies[0];
      const auto& t = tensors[c.view];
      return {t.data + static_cast<std::size_t>(c.elements.to) * size_of(t.type), f.bytes};
    }
    auto& b = scratch[ticket];
    if (!b.memory && !spare.empty()) {
      b = std::move(spare.back());
      spare.pop_back();
    }
    if (b.bytes < f.bytes)
      b = {unpack.device().allocate(f.bytes, beside()), f.bytes};
    return {b.memory.get(), f.bytes};
  }

  void give_back(std::uint64_t ticket) {
    auto it = scratch.find(ticket);
    if (it == scratch.end())
      return;
    spare.push_back(std::move(it->second));
    scratch.erase(it);
  }

  [[nodiscard]] memory_kind memory() const {
    return tensors.empty() ? memory_kind::host : tensors[0].memory;
  }

  // Buffers are on the GPU that the tensors are on.
  [[nodiscard]] const void* beside() const {
    return tensors.empty() ? nullptr : tensors[0].data;
  }

  struct buffer {
    std::shared_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
  };

  std::vector<tensor_view> tensors;
  layout target;
  unpacker unpack;
  std::map<std::pair<std::uint64_t, std::set<std::int32_t>>, transfer_plan> plans;
  std::map<std::uint64_t, buffer> scratch; // by ticket
  std::vector<buffer> spare;
  std::unique_ptr<reader> reads; // ends before what it writes into
  double link_bytes_per_s = 0;
};

namespace {

struct cancelled_at_end {
  reader& reads;
  ~cancelled_at_end() { reads.cancel(); }
};

// One attempt at one version with one plan.
class attempt {
public:
  attempt(const manifest& m, const transfer_plan& plan, puller::implementation& p,
          const pull_options& options, pull_report& report, const stopwatch& total)
    : manifest_(m), plan_(plan), p_(p), options_(options), report_(report), total_(total),
      batch_(p.unpack.device().batch()),
      machine_({std::max(options.window, batch_), options.max_attempts, 0, options.timeout_s, 0}) {}

  attempt(const attempt&) = delete;
  attempt& operator=(const attempt&) = delete;
  // By an exception too no read outlives it: they name the manifest's regions.
  ~attempt() {
    if (!over_)
      give_up_reads();
  }

  // The rank of a lost owner, or −1.
  std::int32_t run() {
    p_.unpack.begin(manifest_, plan_);
    machine_.notice(manifest_.number, total_.seconds());
    handle(machine_.lease_granted(manifest_.number, plan_.fetches.size(), total_.seconds()));
    while (!over_)
      step();
    report_.retries += machine_.retries();
    report_.verify_s += p_.unpack.verify_s();
    report_.load_s += p_.unpack.load_s();
    report_.quantise_s += p_.unpack.quantise_s();
    return lost_owner_;
  }

private:
  void step() {
    if (options_.should_stop && options_.should_stop()) {
      end(pull_outcome::stopped, "told to stop");
      return;
    }
    auto left = options_.timeout_s - total_.seconds();
    if (left <= 0) {
      end(pull_outcome::timed_out, "the pull of " + to_string(manifest_.number) + " exceeded "
                                     + std::to_string(options_.timeout_s) + " s" + waiting_for());
      return;
    }
    stopwatch wire;
    auto completions = p_.reads->poll(std::min(left, longest_sleep_s));
    report_.wire_s += wire.seconds();
    if (!completions.empty() && options_.on_progress
        && total_.seconds() - last_progress_ >= progress_every_s) {
      last_progress_ = total_.seconds();
      options_.on_progress();
    }
    for (auto& c : completions)
      if (!over_)
        completed(c);
    while (!over_ && !arrived_.empty()
           && (arrived_.size() >= batch_ || arrived_.size() == reading_.size()))
      land();
  }

  void completed(const completion& c) {
    auto it = reading_.find(c.tag);
    if (it == reading_.end())
      return;
    auto owner = plan_.fetches[it->second].owner;
    if (c.error.empty()) {
      handle(machine_.fetched(c.tag, total_.seconds()));
      return;
    }
    auto what = c.error + " (trainer rank " + std::to_string(owner) + ")";
    if (c.peer_lost) {
      lost_owner_ = owner;
      end(pull_outcome::failed, what);
      return;
    }
    forget(c.tag);
    handle(machine_.fetch_failed(c.tag, what, total_.seconds()));
  }

  void handle(receiver_machine::actions actions) {
    std::deque<receiver_action> queue(actions.begin(), actions.end());
    while (!queue.empty() && !over_) {
      auto a = std::move(queue.front());
      queue.pop_front();
      auto more = act(a);
      queue.insert(queue.end(), more.begin(), more.end());
    }
  }

  receiver_machine::actions act(const receiver_action& a) {
    switch (a.what) {
      case kind::start_fetch: start(a); return {};
      case kind::verify: arrived_.push_back(a.ticket); return {};
      case kind::ready: end(pull_outcome::ready, {}); return {};
      case kind::give_up: end(pull_outcome::failed, a.reason); return {};
      default: return {}; // leases are the caller's; end() cancels
    }
  }

  void start(const receiver_action& a) {
    const auto& f = plan_.fetches[a.fetch];
    reading_[a.ticket] = a.fetch;
    auto place = p_.place_for(f, a.ticket);
    stopwatch wire;
    p_.reads->post(a.ticket, {&manifest_.owners[static_cast<std::size_t>(f.owner)], f.offset,
                              place, p_.memory()});
    report_.wire_s += wire.seconds();
    report_.bytes += static_cast<std::int64_t>(f.bytes);
  }

  // Proves and unpacks what has come, as much at a time as suits the memory it is in.
  void land() {
    std::vector<std::uint64_t> tickets;
    std::vector<arrival> came;
    while (!arrived_.empty() && tickets.size() < batch_) {
      auto ticket = arrived_.front();
      arrived_.pop_front();
      const auto& f = plan_.fetches[reading_.at(ticket)];
      tickets.push_back(ticket);
      came.push_back({&f, p_.place_for(f, ticket)});
    }
    std::vector<std::string> wrong;
    if (plan_.fetches[reading_.at(tickets[0])].delta) // host memory: one at a time
      wrong.push_back(p_.unpack.rebuild(came[0], options_.base));
    else
      wrong = p_.unpack.land(came);
    for (std::size_t i = 0; i < tickets.size() && !over_; ++i) {
      forget(tickets[i]);
      handle(machine_.verified(tickets[i], wrong[i].empty(), wrong[i], total_.seconds()));
    }
  }

  void forget(std::uint64_t ticket) {
    reading_.erase(ticket);
    p_.give_back(ticket);
  }

  [[nodiscard]] std::string waiting_for() const {
    if (reading_.empty())
      return {};
    auto owner = plan_.fetches[reading_.begin()->second].owner;
    return ", waiting for bytes of trainer rank " + std::to_string(owner);
  }

  void end(pull_outcome outcome, std::string error) {
    over_ = true;
    report_.outcome = outcome;
    report_.error = std::move(error);
    give_up_reads();
  }

  void give_up_reads() {
    p_.reads->cancel();
    while (!reading_.empty())
      forget(reading_.begin()->first);
  }

  const manifest& manifest_;
  const transfer_plan& plan_;
  puller::implementation& p_;
  const pull_options& options_;
  pull_report& report_;
  const stopwatch& total_;
  std::size_t batch_;
  receiver_machine machine_;
  std::map<std::uint64_t, std::size_t> reading_; // ticket → fetch, until its bytes are unpacked
  std::deque<std::uint64_t> arrived_;
  double last_progress_ = 0;
  bool over_ = false;
  std::int32_t lost_owner_ = -1;
};

} // namespace

puller::puller(transport& carrier, std::vector<tensor_view> tensors, layout target)
  : impl_(std::make_unique<implementation>(carrier, std::move(tensors), std::move(target))) {}

puller::~puller() = default;

void puller::retarget(std::vector<tensor_view> tensors) {
  ensure(tensors.size() == impl_->tensors.size(), "other tensors than before");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& before = impl_->tensors[i];
    ensure(tensors[i].name == before.name && tensors[i].shape == before.shape
             && tensors[i].type == before.type && tensors[i].memory == before.memory,
           [&] { return before.name + " is not the same tensor as before"; });
  }
  impl_->tensors = std::move(tensors);
  impl_->unpack = unpacker(impl_->tensors);
  impl_->register_tensors();
}

pull_report puller::pull(const manifest& m, const pull_options& options) {
  pull_report report;
  report.number = m.number;
  stopwatch total;
  // An owner that is lost is left out of the next plan, as long as its replicas can stand in.
  std::set<std::int32_t> avoid;
  bool delta = m.delta_base != no_version && m.delta_base == options.base_version
               && options.base.size() == impl_->tensors.size()
               && impl_->memory() == memory_kind::host;
  for (;;) {
    stopwatch planning;
    auto key = std::pair{m.topology(), avoid};
    auto it = impl_->plans.find(key);
    if (it == impl_->plans.end()) {
      plan_options how{options.receiver, options.fetch_bytes, avoid};
      it = impl_->plans.emplace(key, make_plan(m, impl_->target, impl_->tensors, how)).first;
    }
    transfer_plan changes;
    if (delta)
      changes = make_delta_plan(m, it->second, impl_->tensors, options.fetch_bytes);
    report.plan_s += planning.seconds();
    report.delta = delta;
    auto lost = attempt(m, delta ? changes : it->second, *impl_, options, report, total).run();
    if (lost >= 0 && avoid.insert(lost).second)
      continue;
    // Changes that don't lead to the published version are no reason to give it up.
    if (lost < 0 && report.outcome == pull_outcome::failed && delta) {
      delta = false;
      continue;
    }
    if (delta && report.ready())
      report.saved_bytes = static_cast<std::int64_t>(it->second.wire_bytes)
                           - static_cast<std::int64_t>(changes.wire_bytes);
    break;
  }
  report.total_s = total.seconds();
  if (impl_->link_bytes_per_s > 0 && report.wire_s > 0)
    report.link_share = static_cast<double>(report.bytes) / report.wire_s / impl_->link_bytes_per_s;
  return report;
}

double puller::measure_link(const manifest& m, double seconds) {
  constexpr std::size_t window = 4;
  constexpr std::size_t step = std::size_t{1} << 20U;
  auto memory = impl_->unpack.device().allocate(window * step, impl_->beside());
  double best = 0;
  stopwatch total;
  for (std::size_t k = 0; !m.owners.empty() && total.seconds() < seconds;
       k = (k + 1) % m.owners.size()) {
    const auto& owner = m.owners[k];
    std::uint64_t posted = 0, ended = 0, moved = 0;
    bool failed = false;
    stopwatch round;
    const cancelled_at_end in_flight{*impl_->reads}; // before the memory goes, by an exception too
    auto post = [&] {
      auto offset = posted * step;
      if (offset >= owner.bytes || failed)
        return;
      auto n = std::min<std::uint64_t>(step, owner.bytes - offset);
      auto place = std::span(memory.get() + posted % window * step, n);
      impl_->reads->post(posted, {&owner, offset, place, impl_->memory()});
      ++posted;
      moved += n;
    };
    for (std::size_t i = 0; i < window; ++i)
      post();
    while (ended < posted && round.seconds() < seconds) {
      for (const auto& c : impl_->reads->poll(longest_sleep_s)) {
        failed |= !c.error.empty();
        ++ended;
        post();
      }
    }
    bool complete = ended == posted && !failed && moved > 0;
    if (!complete)
      break;
    best = std::max(best, static_cast<double>(moved) / round.seconds());
  }
  impl_->link_bytes_per_s = best;
  return best;
}

pull_report pull(const manifest& m, std::span<const tensor_view> staging, transport& carrier,
                 double timeout_s, std::function<bool()> should_stop) {
  pull_options options;
  options.timeout_s = timeout_s;
  options.should_stop = std::move(should_stop);
  return puller(carrier, {staging.begin(), staging.end()}, replicated(staging)).pull(m, options);
}

} // namespace millrace::weightsync
