#include "actors/introspector_actor.hpp"

namespace millrace {

caf::behavior introspector_state::start(introspector_options options,
                                        std::shared_ptr<node_tree> tree,
                                        std::shared_ptr<process_presence> process) {
  report_exceptions(self_);
  options_ = options;
  tree_ = std::move(tree);
  process_ = std::move(process);
  if (process_)
    process_->stage("running", now_s(self_));
  self_->set_down_handler([this](const caf::down_msg& down) {
    for (auto& [node, p] : peers_)
      if (p.handle.address() == down.source)
        p = {nullptr, now_s(self_), false};
  });
  self_->delayed_send(self_, after(options_.every_s), tick_atom::value);
  return {
    [this](inspect_atom) { return tree_->local()->snapshots(now_s(self_)); },
    [this](inspect_atom, all_atom) { return tree_->all(now_s(self_)); },
    [this](node_joined_atom, const std::string& node, const caf::actor& introspector) {
      auto& p = peers_[node];
      if (p.handle == introspector)
        return;
      p = {introspector, 0, false};
      self_->monitor(introspector);
      tree_->expect(node, now_s(self_));
      ask(node, p);
    },
    [this](tick_atom) {
      self_->delayed_send(self_, after(options_.every_s), tick_atom::value);
      look();
    },
  };
}

void introspector_state::look() {
  auto now = now_s(self_);
  if (process_) {
    tree_->local()->ask_all();
    process_->refresh(tree_->local()->snapshots(now), now);
  }
  for (auto p = peers_.begin(); p != peers_.end();) {
    auto at = p++;
    if (at->second.handle)
      ask(at->first, at->second);
    else if (now > at->second.gone_at + options_.forget_s) {
      tree_->forget(at->first);
      peers_.erase(at);
    }
  }
}

void introspector_state::ask(const std::string& node, peer& p) {
  if (std::exchange(p.asked, true))
    return;
  auto settle = [this, node, handle = p.handle] {
    auto at = peers_.find(node);
    auto current = at != peers_.end() && at->second.handle == handle;
    if (current)
      at->second.asked = false;
    return current;
  };
  self_->request(p.handle, within(options_.answer_s), inspect_atom::value)
    .then(
      [=, this](std::vector<actor_snapshot>& actors) {
        if (settle())
          tree_->update(node, std::move(actors), now_s(self_));
      },
      [=](const caf::error&) { settle(); }); // its last answer ages, and shows it
}

caf::behavior introspector_actor(caf::stateful_actor<introspector_state>* self,
                                 introspector_options options, std::shared_ptr<node_tree> tree,
                                 std::shared_ptr<process_presence> process) {
  return self->state.start(options, std::move(tree), std::move(process));
}

} // namespace millrace
