#include "runtime/metrics/node_tree.hpp"

#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/lookup.hpp"

#include <algorithm>

namespace millrace {

void node_tree::expect(const std::string& node, double now) {
  std::lock_guard lock(mutex_);
  peers_.try_emplace(node, peer{now, {}});
}

void node_tree::update(const std::string& node, std::vector<actor_snapshot> actors, double now) {
  for (auto& a : actors)
    a.node = node;
  const auto memory = static_cast<std::int64_t>(largest(actors, metrics::peak_memory));
  std::lock_guard lock(mutex_);
  peaks_[node] = std::max(peaks_[node], memory);
  peers_[node] = {now, std::move(actors)};
}

void node_tree::forget(const std::string& node) {
  std::lock_guard lock(mutex_);
  peers_.erase(node);
}

std::map<std::string, std::int64_t> node_tree::peak_memory() const {
  std::lock_guard lock(mutex_);
  return peaks_;
}

std::vector<actor_snapshot> node_tree::all(double now) const {
  auto out = local_->snapshots(now);
  std::lock_guard lock(mutex_);
  for (const auto& [node, p] : peers_) {
    const auto age = std::max(0.0, now - p.at);
    auto actors = p.actors;
    const auto is_process = [](const actor_snapshot& a) { return a.kind == "process"; };
    if (std::none_of(actors.begin(), actors.end(), is_process)) {
      actor_snapshot process{"process", "process", node, "starting"};
      actors.insert(actors.begin(), std::move(process));
    }
    for (auto& a : actors) {
      a.since += age;
      a.silent += age;
      if (is_process(a) && age > late_s) {
        a.state = "no answer";
        a.since = age;
      }
    }
    out.insert(out.end(), std::make_move_iterator(actors.begin()),
               std::make_move_iterator(actors.end()));
  }
  return out;
}

} // namespace millrace
