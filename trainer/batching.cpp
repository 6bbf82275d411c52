#include "trainer/batching.hpp"

#include "runtime/error.hpp"
#include "runtime/random.hpp"

#include <algorithm>
#include <numeric>

namespace millrace::trainer {

namespace {

/// A possible split of the items seen so far; the parts are kept by descending sum.
struct differencing_state {
  struct part {
    std::int64_t sum = 0;
    std::vector<std::size_t> items;
  };
  std::vector<part> parts;
  std::size_t serial = 0; // breaks ties, so that the result depends on the input only

  [[nodiscard]] std::int64_t spread() const { return parts.front().sum - parts.back().sum; }

  void sort() {
    std::stable_sort(parts.begin(), parts.end(),
                     [](const auto& x, const auto& y) { return x.sum > y.sum; });
  }

  /// Lays the other's parts onto these the other way round: its heaviest onto the lightest.
  void absorb(differencing_state&& other) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      auto& from = other.parts[parts.size() - 1 - i];
      parts[i].sum += from.sum;
      parts[i].items.insert(parts[i].items.end(), from.items.begin(), from.items.end());
    }
    sort();
  }
};

struct smaller_spread {
  bool operator()(const differencing_state& a, const differencing_state& b) const {
    return a.spread() != b.spread() ? a.spread() < b.spread() : a.serial > b.serial;
  }
};

/// Indices by descending weight, ties by index.
std::vector<std::size_t> heaviest_first(std::span<const std::int64_t> weights) {
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return weights[a] > weights[b]; });
  return order;
}

/// Largest differencing, over the items in this order.
partition by_difference(std::span<const std::int64_t> weights,
                        const std::vector<std::size_t>& order, std::size_t parts,
                        bool equal_counts) {
  ensure(parts > 0, "balanced_parts: no parts");
  // A state starts with one item (the rest of its parts empty) or, for equal counts, with one item
  // in every part: laying states onto each other then keeps the counts equal.
  auto per_state = equal_counts ? parts : std::size_t{1};
  std::vector<differencing_state> heap; // the largest spread on top
  for (std::size_t at = 0; at < order.size(); at += per_state) {
    differencing_state s;
    s.parts.resize(parts);
    s.serial = at;
    for (std::size_t j = 0; j < per_state && at + j < order.size(); ++j)
      s.parts[j] = {weights[order[at + j]], {order[at + j]}};
    s.sort();
    heap.push_back(std::move(s));
  }
  if (heap.empty())
    return partition(parts);
  std::make_heap(heap.begin(), heap.end(), smaller_spread{});
  while (heap.size() > 1) {
    std::pop_heap(heap.begin(), heap.end(), smaller_spread{});
    auto a = std::move(heap.back());
    heap.pop_back();
    std::pop_heap(heap.begin(), heap.end(), smaller_spread{});
    a.absorb(std::move(heap.back()));
    heap.back() = std::move(a);
    std::push_heap(heap.begin(), heap.end(), smaller_spread{});
  }
  partition result;
  for (auto& p : heap.front().parts)
    result.push_back(std::move(p.items));
  for (auto& p : result)
    std::sort(p.begin(), p.end());
  return result;
}

void drop_empty_and_sort(partition& parts) {
  std::erase_if(parts, [](const auto& p) { return p.empty(); });
  for (auto& p : parts)
    std::sort(p.begin(), p.end());
}

partition by_fewest_sequences(std::span<const std::int64_t> lengths, std::int64_t budget,
                              std::size_t at_least) {
  partition result(std::min(at_least, lengths.size()));
  std::vector<std::int64_t> used(result.size(), 0);
  for (auto i : heaviest_first(lengths)) {
    auto best = result.size();
    for (std::size_t b = 0; b < result.size(); ++b)
      if (used[b] + lengths[i] <= budget
          && (best == result.size() || result[b].size() < result[best].size()))
        best = b;
    if (best == result.size()) {
      result.emplace_back();
      used.push_back(0);
    }
    result[best].push_back(i);
    used[best] += lengths[i];
  }
  drop_empty_and_sort(result);
  return result;
}

bool fits(const partition& parts, std::span<const std::int64_t> lengths, std::int64_t budget) {
  return std::all_of(parts.begin(), parts.end(), [&](const auto& part) {
    std::int64_t sum = 0;
    for (auto i : part)
      sum += lengths[i];
    return sum <= budget;
  });
}

/// The smallest number of balanced parts that fits, tried in up to eight sizes between the least
/// conceivable and what the greedy rule needs; the greedy split itself when none of them does.
partition by_differencing(std::span<const std::int64_t> lengths, std::int64_t budget,
                          std::size_t at_least) {
  auto greedy = by_fewest_sequences(lengths, budget, at_least);
  auto total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  auto least = std::max({at_least, std::size_t{1},
                         static_cast<std::size_t>((total + budget - 1) / budget)});
  least = std::min(least, greedy.size());
  auto stride = std::max<std::size_t>(1, (greedy.size() - least) / 8);
  for (auto k = least; k <= greedy.size(); k += stride) {
    auto parts = balanced_parts(lengths, k, false);
    drop_empty_and_sort(parts);
    if (fits(parts, lengths, budget))
      return parts;
  }
  return greedy;
}

} // namespace

std::int32_t training_sequence::sampled() const {
  return static_cast<std::int32_t>(
    std::count_if(versions.begin(), versions.end(), [](auto v) { return v >= 0; }));
}

std::vector<training_sequence> training_sequences(std::span<const scored_group> groups) {
  std::vector<training_sequence> result;
  std::int32_t index = 0;
  for (const auto& group : groups) {
    if (group.rollouts.empty())
      continue;
    for (const auto& r : group.rollouts) {
      ensure(r.tokens.size() == r.behaviour_logp.size() && r.tokens.size() == r.versions.size(),
             [&] {
               return "rollout " + to_string(r.id) + " has " + std::to_string(r.tokens.size())
                      + " tokens, " + std::to_string(r.behaviour_logp.size()) + " log-probs, "
                      + std::to_string(r.versions.size()) + " versions";
             });
      ensure(r.versions.empty() || r.versions.front() < 0,
             [&] { return "rollout " + to_string(r.id) + ": its first token claims a version"; });
      result.push_back({r.id, index, r.reward, r.tokens, r.behaviour_logp, r.versions});
    }
    ++index;
  }
  return result;
}

std::vector<sibling_run> sibling_runs(std::span<const training_sequence> sequences,
                                      std::span<const std::size_t> which) {
  std::vector<sibling_run> runs;
  auto inputs = [&](std::size_t i) {
    const auto& t = sequences[which[i]].tokens;
    return t.empty() ? t : t.first(t.size() - 1);
  };
  for (std::size_t i = 0; i < which.size(); i = runs.back().first + runs.back().count) {
    sibling_run run{i, 1, 0, static_cast<std::int64_t>(inputs(i).size())};
    auto total = run.packed_tokens, common = run.packed_tokens;
    for (auto j = i + 1; j < which.size()
                         && sequences[which[j]].group == sequences[which[i]].group; ++j) {
      auto length = static_cast<std::int64_t>(inputs(j).size());
      auto most = std::min(common, length);
      common = std::mismatch(inputs(i).begin(), inputs(i).begin() + most, inputs(j).begin()).first
               - inputs(i).begin();
      total += length;
      ++run.count;
    }
    if (run.count > 1) {
      run.prefix = common;
      run.packed_tokens = total - common * static_cast<std::int64_t>(run.count - 1);
    }
    runs.push_back(run);
  }
  return runs;
}

packing_units units_of(std::span<const training_sequence> sequences,
                       std::span<const std::size_t> which, std::int64_t token_budget) {
  packing_units units;
  auto add = [&](std::vector<std::size_t> members, std::int64_t length) {
    units.members.push_back(std::move(members));
    units.lengths.push_back(length);
  };
  for (const auto& run : sibling_runs(sequences, which)) {
    auto length = [&](std::size_t i) {
      return static_cast<std::int64_t>(sequences[which[i]].tokens.size());
    };
    auto saved = run.prefix * static_cast<std::int64_t>(run.count - 1);
    if (run.count == 1 || saved * 10 < run.packed_tokens + saved) {
      for (std::size_t i = 0; i < run.count; ++i)
        add({run.first + i}, length(run.first + i));
      continue;
    }
    std::vector<std::size_t> piece;
    std::int64_t tokens = 0;
    for (auto i = run.first; i < run.first + run.count; ++i) {
      if (!piece.empty() && tokens + length(i) - run.prefix > token_budget) {
        add(std::move(piece), tokens);
        piece.clear();
      }
      tokens = piece.empty() ? length(i) : tokens + length(i) - run.prefix;
      piece.push_back(i);
    }
    add(std::move(piece), tokens);
  }
  return units;
}

namespace {

void end_segment(packed_sequences& p, std::int32_t prefix) {
  p.cu_seqlens.push_back(static_cast<std::int32_t>(p.tokens.size()));
  p.prefixes.push_back(prefix);
}

/// Tokens [from, to) of a sequence, as model input.
void append(packed_sequences& p, const training_sequence& seq, std::int64_t from,
            std::int64_t to) {
  for (auto i = from; i < to; ++i) {
    p.tokens.push_back(seq.tokens[static_cast<std::size_t>(i)]);
    p.positions.push_back(i);
  }
}

/// A run of siblings: what they share, then the rest of each.
void append(packed_sequences& p, std::span<const training_sequence> sequences,
            std::span<const std::size_t> siblings, std::int64_t prefix) {
  auto shared_at = static_cast<std::int64_t>(p.tokens.size());
  std::int32_t root = -1;
  if (prefix > 0) {
    append(p, sequences[siblings.front()], 0, prefix);
    end_segment(p, -1);
    root = static_cast<std::int32_t>(p.prefixes.size()) - 1;
  }
  for (auto s : siblings) {
    const auto& seq = sequences[s];
    auto inputs = static_cast<std::int64_t>(seq.tokens.size()) - 1;
    auto own_at = static_cast<std::int64_t>(p.tokens.size());
    append(p, seq, prefix, inputs);
    if (inputs > prefix || prefix == 0)
      end_segment(p, root);
    for (std::int64_t i = 0; i < inputs; ++i) {
      auto next = static_cast<std::size_t>(i) + 1;
      if (seq.versions[next] < 0)
        continue;
      p.rows.push_back(i < prefix ? shared_at + i : own_at + i - prefix);
      p.targets.push_back(seq.tokens[next]);
      p.behaviour_logp.push_back(seq.behaviour_logp[next]);
      p.versions.push_back(seq.versions[next]);
    }
    p.sampled_cu_seqlens.push_back(static_cast<std::int32_t>(p.rows.size()));
  }
}

} // namespace

packed_sequences pack(std::span<const training_sequence> sequences,
                      std::span<const std::size_t> which, bool share_prompts) {
  packed_sequences p;
  if (share_prompts) {
    for (const auto& run : sibling_runs(sequences, which))
      append(p, sequences, which.subspan(run.first, run.count), run.prefix);
    if (std::all_of(p.prefixes.begin(), p.prefixes.end(), [](auto x) { return x < 0; }))
      p.prefixes.clear();
    return p;
  }
  for (std::size_t i = 0; i < which.size(); ++i)
    append(p, sequences, which.subspan(i, 1), 0);
  p.prefixes.clear();
  return p;
}

partition micro_batches(std::span<const std::int64_t> lengths, std::int64_t token_budget,
                        micro_batch_packing rule, std::size_t at_least) {
  auto longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  if (longest > token_budget)
    throw user_error("a sequence of the training batch has " + std::to_string(longest)
                     + " tokens, but a micro-batch may hold " + std::to_string(token_budget)
                     + ": raise trainer.micro_batch_tokens to " + std::to_string(longest)
                     + " or more, or lower the longest prompt or answer allowed");
  if (lengths.empty())
    return {};
  return rule == micro_batch_packing::karmarkar_karp
           ? by_differencing(lengths, token_budget, at_least)
           : by_fewest_sequences(lengths, token_budget, at_least);
}

partition balanced_parts(std::span<const std::int64_t> weights, std::size_t parts,
                         bool equal_counts) {
  return by_difference(weights, heaviest_first(weights), parts, equal_counts);
}

partition minibatches(std::span<const training_sequence> sequences, std::size_t count,
                      std::uint64_t seed) {
  if (sequences.empty())
    return {};
  auto groups = static_cast<std::size_t>(sequences.back().group) + 1;
  std::vector<std::size_t> shuffled(groups);
  std::iota(shuffled.begin(), shuffled.end(), std::size_t{0});
  random_stream random{seed, stream_of("minibatches")};
  for (auto i = groups; i > 1; --i)
    std::swap(shuffled[i - 1], shuffled[random.below(i)]);

  std::vector<std::int64_t> tokens(groups, 0);
  for (const auto& s : sequences)
    tokens[static_cast<std::size_t>(s.group)] += static_cast<std::int64_t>(s.tokens.size());
  // In shuffled order, not the heaviest first: or each epoch would have the same minibatches.
  auto split = by_difference(tokens, shuffled, std::min(std::max<std::size_t>(count, 1), groups),
                             true);
  std::vector<std::size_t> part_of(groups);
  for (std::size_t p = 0; p < split.size(); ++p)
    for (auto g : split[p])
      part_of[g] = p;
  partition result(split.size());
  for (std::size_t s = 0; s < sequences.size(); ++s)
    result[part_of[static_cast<std::size_t>(sequences[s].group)]].push_back(s);
  return result;
}

} // namespace millrace::trainer
