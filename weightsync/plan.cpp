#include "weightsync/plan.hpp"

#include "runtime/error.hpp"
#include "weightsync/coverage.hpp"
#include "weightsync/dtype_names.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace millrace::weightsync {

namespace {

// Shards below this go through the scratch buffer together with their neighbours: a copy of them
// costs less than a read of their own.
constexpr std::uint64_t small_shard = 64U << 10U;
// Padding between neighbouring shards that is pulled along rather than starting a new read.
constexpr std::uint64_t small_gap = 256;

// Replicas: the same slice at several owners.
struct replica_group {
  slice part;
  std::vector<std::uint32_t> shards; // indices
};

bool convertible(dtype from, const tensor_view& to) {
  auto number = [](dtype t) { return t == dtype::f32 || t == dtype::bf16 || t == dtype::i8; };
  return from == to.type || (number(from) && number(to.type))
         || (number(from) && to.type == dtype::f8_e4m3);
}

// Whether a receiver's tensor of this type has a scale for each row.
bool scaled(dtype t) { return t == dtype::i8 || t == dtype::f8_e4m3; }

// Adds a fetch of one shard, merged into the last one where both are neighbours.
void append(std::vector<fetch>& queue, fetch one, std::uint64_t limit) {
  if (!queue.empty()) {
    auto& last = queue.back();
    bool neighbours = one.owner == last.owner && one.offset >= last.offset
                      && one.offset <= last.offset + last.bytes + small_gap
                      && one.offset + one.bytes - last.offset <= limit;
    if (neighbours && !one.in_place && !last.in_place && one.delta == last.delta) {
      auto at = one.offset - last.offset;
      one.shards[0].at = at;
      last.bytes = std::max(last.bytes, at + one.bytes);
      last.shards.push_back(std::move(one.shards[0]));
      return;
    }
  }
  queue.push_back(std::move(one));
}

class planner {
public:
  planner(const manifest& m, const layout& target, std::span<const tensor_view> tensors,
          const plan_options& options)
    : manifest_(m), target_(target), tensors_(tensors), options_(options),
      load_(m.owners.size()), landings_(m.tensors.size()) {
    for (std::size_t i = 0; i < m.tensors.size(); ++i)
      entries_[m.tensors[i].name] = i;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      views_[tensors[i].name] = i;
    plan_.topology = m.topology();
    plan_.collected.assign(tensors.size(), false);
  }

  transfer_plan run() {
    for (const auto& p : target_)
      place(p);
    make_fetches();
    return std::move(plan_);
  }

private:
  [[noreturn]] static void reject(const placement& p, const std::string& what) {
    throw user_error("weight transfer: tensor " + p.tensor + ": " + what);
  }

  // Groups the shards of a tensor by what they hold; once for each tensor.
  const std::vector<replica_group>& groups(std::size_t tensor) {
    auto [it, fresh] = groups_.try_emplace(tensor);
    if (!fresh)
      return it->second;
    using key = std::tuple<std::int32_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
    std::map<key, std::size_t> index;
    const auto& shards = manifest_.tensors[tensor].shards;
    for (std::uint32_t i = 0; i < shards.size(); ++i) {
      const auto& s = shards[i].part;
      auto [at, is_new] = index.try_emplace({s.axis, s.begin, s.end, s.first, s.count},
                                            it->second.size());
      if (is_new)
        it->second.push_back({s, {}});
      it->second[at->second].shards.push_back(i);
    }
    return it->second;
  }

  void check(const placement& p, const tensor_entry& entry, const tensor_view& view) {
    if (entry.shape != p.shape)
      reject(p, "its published shape is not the receiver's");
    if (p.local_offset < 0 || p.local_offset + p.part.count > view.elements())
      reject(p, "the receiver's " + view.name + " has " + std::to_string(view.elements())
                  + " elements, expected " + std::to_string(p.local_offset + p.part.count)
                  + " or more");
    if (!convertible(entry.type, view))
      reject(p, "it is published as " + to_string(entry.type) + ", which can't become "
                  + to_string(view.type));
    if (!scaled(view.type))
      return;
    auto scales = views_.find(scale_name(view.name));
    auto rows = view.shape.empty() ? 0 : view.shape[0];
    if (scales == views_.end() || tensors_[scales->second].type != dtype::f32
        || tensors_[scales->second].elements() != rows)
      reject(p, "the receiver's " + to_string(view.type) + " tensor needs " + scale_name(view.name)
                  + " beside it, f32, " + std::to_string(rows) + " elements");
  }

  void place(const placement& p) {
    auto entry = entries_.find(p.tensor);
    if (entry == entries_.end())
      reject(p, "the receiver needs it, but it isn't published");
    auto view = views_.find(p.local);
    if (view == views_.end())
      reject(p, "the receiver has no tensor " + p.local + " to put it into");
    check(p, manifest_.tensors[entry->second], tensors_[view->second]);
    auto number = static_cast<std::uint32_t>(view->second);

    struct candidate {
      const replica_group* group;
      std::vector<strided_copy> copies;
      std::int64_t overlap;
    };
    std::vector<candidate> candidates;
    for (const auto& g : groups(entry->second)) {
      auto copies = intersect(p.shape, g.part, p.part);
      std::int64_t n = 0;
      for (const auto& c : copies)
        n += c.elements();
      if (n > 0)
        candidates.push_back({&g, std::move(copies), n});
    }
    // Where slices overlap, the larger ones first: fewer reads, fewer bytes that aren't used.
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const auto& a, const auto& b) { return a.overlap > b.overlap; });
    coverage covered;
    for (const auto& c : candidates) {
      auto fresh = uncovered(c.copies, covered);
      if (!fresh.empty())
        land(entry->second, *c.group, number, p, fresh);
    }
    auto gap = covered.first_gap(p.part.count);
    if (gap < p.part.count)
      reject(p, "element " + std::to_string(gap) + " of the slice that the receiver needs isn't "
                "published by any trainer rank");
  }

  static std::vector<strided_copy> uncovered(const std::vector<strided_copy>& copies,
                                             coverage& covered) {
    std::vector<strided_copy> result;
    for (const auto& c : copies)
      for (std::int64_t i = 0; i < c.count; ++i) {
        auto from = c.from + i * c.from_stride;
        auto to = c.to + i * c.to_stride;
        for (auto [begin, end] : covered.take(to, to + c.length))
          append_run(result, from + begin - to, begin, end - begin);
      }
    return result;
  }

  // Lets the copies come out of one shard of the group.
  void land(std::size_t tensor, const replica_group& group, std::uint32_t view,
            const placement& p, const std::vector<strided_copy>& copies) {
    auto& entry = manifest_.tensors[tensor];
    auto shard = choose(tensor, group);
    auto& into = landings_[tensor][shard];
    for (auto c : copies) {
      plan_.needed_bytes += static_cast<std::uint64_t>(c.elements()) * size_of(entry.type);
      c.to += p.local_offset;
      into.push_back({view, c});
    }
    const auto& v = tensors_[view];
    if (scaled(v.type)) {
      auto row = v.shape.empty() || v.shape[0] == 0 ? 1 : v.elements() / v.shape[0];
      bool whole_rows = std::all_of(copies.begin(), copies.end(), [&](const auto& c) {
        return (c.to + p.local_offset) % row == 0 && c.length % row == 0;
      });
      if (entry.type != v.type || !whole_rows)
        plan_.collected[view] = true;
    }
  }

  // The least-loaded owner among replicas; a shard that is pulled anyway costs nothing more.
  std::uint32_t choose(std::size_t tensor, const replica_group& group) {
    const auto& shards = manifest_.tensors[tensor].shards;
    auto owners = static_cast<std::int32_t>(manifest_.owners.size());
    auto rank = [&](std::uint32_t i) {
      auto owner = shards[i].owner;
      auto turn = (owner - options_.receiver % owners + owners) % owners;
      return std::tuple(options_.avoid.contains(owner), load_[static_cast<std::size_t>(owner)],
                        turn);
    };
    for (auto i : group.shards)
      if (landings_[tensor].contains(i))
        return i;
    auto best = *std::min_element(group.shards.begin(), group.shards.end(),
                                  [&](auto a, auto b) { return rank(a) < rank(b); });
    load_[static_cast<std::size_t>(shards[best].owner)] += shards[best].length;
    return best;
  }

  [[nodiscard]] bool in_place(const shard& s, const tensor_entry& t,
                              const std::vector<shard_copy>& copies) const {
    if (copies.size() != 1 || s.length < small_shard)
      return false;
    const auto& c = copies[0].elements;
    return c.count == 1 && c.from == 0 && c.length == s.part.count
           && tensors_[copies[0].view].type == t.type && !plan_.collected[copies[0].view];
  }

  void make_fetches() {
    struct wanted {
      landing what;
      const shard* source;
      bool in_place;
    };
    std::vector<std::vector<wanted>> by_owner(manifest_.owners.size());
    for (std::uint32_t t = 0; t < landings_.size(); ++t)
      for (auto& [i, copies] : landings_[t]) {
        const auto& s = manifest_.tensors[t].shards[i];
        bool direct = in_place(s, manifest_.tensors[t], copies);
        by_owner[static_cast<std::size_t>(s.owner)].push_back(
          {{t, i, 0, std::move(copies)}, &s, direct});
      }
    std::vector<std::vector<fetch>> queues;
    for (auto& list : by_owner) {
      std::sort(list.begin(), list.end(),
                [](const auto& a, const auto& b) { return a.source->offset < b.source->offset; });
      auto& queue = queues.emplace_back();
      for (auto& w : list)
        append(queue, {w.source->owner, w.source->offset, w.source->length, {std::move(w.what)},
                       w.in_place},
               options_.fetch_bytes);
    }
    interleave(queues);
  }

  // All owners are asked at once, each receiver beginning with another one.
  void interleave(std::vector<std::vector<fetch>>& queues) {
    std::size_t longest = 0;
    for (const auto& q : queues)
      longest = std::max(longest, q.size());
    for (std::size_t i = 0; i < longest; ++i)
      for (std::size_t k = 0; k < queues.size(); ++k) {
        auto& q = queues[(k + static_cast<std::size_t>(options_.receiver)) % queues.size()];
        if (i >= q.size())
          continue;
        plan_.wire_bytes += q[i].bytes;
        plan_.fetches.push_back(std::move(q[i]));
      }
  }

  const manifest& manifest_;
  const layout& target_;
  std::span<const tensor_view> tensors_;
  const plan_options& options_;
  std::vector<std::uint64_t> load_; // bytes that each owner has to give
  std::vector<std::map<std::uint32_t, std::vector<shard_copy>>> landings_; // by tensor, shard
  std::map<std::string, std::size_t> entries_;
  std::map<std::string, std::size_t> views_;
  std::map<std::size_t, std::vector<replica_group>> groups_;
  transfer_plan plan_;
};

} // namespace

transfer_plan make_plan(const manifest& m, const layout& target,
                        std::span<const tensor_view> tensors, const plan_options& options) {
  return planner(m, target, tensors, options).run();
}

transfer_plan make_delta_plan(const manifest& m, const transfer_plan& full,
                              std::span<const tensor_view> tensors, std::uint64_t fetch_bytes) {
  transfer_plan result;
  result.topology = full.topology;
  result.collected = full.collected;
  result.needed_bytes = full.needed_bytes;
  for (const auto& f : full.fetches)
    for (const auto& l : f.shards) {
      const auto& s = m.tensors[l.tensor].shards[l.shard];
      std::int64_t landed = 0;
      bool same_type = true;
      for (const auto& c : l.copies) {
        landed += c.elements.elements();
        same_type &= tensors[c.view].type == m.tensors[l.tensor].type && !full.collected[c.view];
      }
      auto what = l;
      what.at = 0;
      if (s.delta.length > 0 && same_type && landed == s.part.count)
        append(result.fetches, {s.owner, s.delta.offset, s.delta.length, {what}, false, true},
               fetch_bytes);
      else
        append(result.fetches, {s.owner, s.offset, s.length, {what}, f.in_place, false},
               fetch_bytes);
    }
  for (const auto& f : result.fetches)
    result.wire_bytes += f.bytes;
  return result;
}

} // namespace millrace::weightsync
