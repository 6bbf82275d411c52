#include "actors/supervisor.hpp"

#include "actors/shell.hpp"
#include "runtime/metrics/catalogue.hpp"

#include <algorithm>

namespace millrace {

caf::behavior supervisor_state::start(supervisor_options options, std::vector<child_spec> children,
                                      caf::actor owner,
                                      std::function<void(const std::string&)> events) {
  report_exceptions(self_);
  options_ = std::move(options);
  owner_ = std::move(owner);
  events_ = std::move(events);
  seen_ = {self_, "supervisor", "supervisor"};
  self_->set_down_handler([this](const caf::down_msg& down) { lost(down); });
  // No child outlives this, whatever ends it. (Links would: a killed child kills what it is linked
  // to, and no exit handler is asked.)
  self_->attach_functor([living = living_] {
    for (const auto& [index, child] : *living)
      caf::anon_send_exit(child, caf::exit_reason::user_shutdown);
  });
  for (auto& spec : children)
    children_.push_back({std::move(spec), nullptr});
  for (std::size_t i = 0; i < children_.size() && !ending_; ++i)
    launch(i);
  seen_.working("watching");
  return {
    [this](tick_atom, std::size_t i) {
      if (!ending_ && !children_[i].retiring)
        launch(i);
    },
    [this](inspect_atom, const std::string& name) -> caf::result<caf::actor> {
      for (const auto& c : children_)
        if (c.spec.name == name && c.handle)
          return c.handle;
      return caf::make_error(caf::sec::invalid_argument, "no actor is called " + name);
    },
    answer_introspection(seen_),
    [this](scale_atom, const std::string& kind, std::int64_t count) { return scale(kind, count); },
    // Ending: nothing is started again, all children are told to stop, and when the last is gone
    // this ends too.
    [this](drain_atom) {
      ending_ = true;
      for (const auto& c : children_)
        if (c.handle)
          self_->send_exit(c.handle, caf::exit_reason::user_shutdown);
      quit_when_alone();
    },
  };
}

void supervisor_state::launch(std::size_t i) {
  auto& c = children_[i];
  try {
    c.handle = c.spec.spawn(self_);
  } catch (const std::exception& e) {
    ending_ = true;
    self_->send(owner_, failed_atom::value, c.spec.name + " could not start: " + e.what());
    return;
  }
  self_->monitor(c.handle);
  (*living_)[i] = c.handle;
  if (c.restarts > 0) {
    events_(c.spec.name + " is up again (restart " + std::to_string(c.restarts) + " of "
            + std::to_string(options_.max_restarts) + ")");
  }
}

caf::result<std::int64_t> supervisor_state::scale(const std::string& kind, std::int64_t count) {
  if (!options_.more || count < 0)
    return caf::make_error(caf::sec::invalid_argument, kind + " can't be scaled here");
  std::vector<std::size_t> running;
  for (std::size_t i = 0; i < children_.size(); ++i)
    if (children_[i].spec.kind == kind && !children_[i].retiring)
      running.push_back(i);
  const auto before = static_cast<std::int64_t>(running.size());
  while (static_cast<std::int64_t>(running.size()) > count) {
    auto& c = children_[running.back()];
    c.retiring = true;
    if (c.handle)
      self_->send(c.handle, drain_atom::value);
    running.pop_back();
  }
  for (auto n = before; n < count; ++n) {
    auto of_kind = [&](const child& c) { return c.spec.kind == kind; };
    auto index = std::count_if(children_.begin(), children_.end(), of_kind);
    children_.push_back({options_.more(kind, static_cast<int>(index)), nullptr});
    launch(children_.size() - 1);
  }
  return before;
}

void supervisor_state::quit_when_alone() {
  auto alive = [](const child& c) { return c.handle != nullptr; };
  if (std::none_of(children_.begin(), children_.end(), alive))
    self_->quit(caf::exit_reason::user_shutdown);
}

void supervisor_state::lost(const caf::down_msg& down) {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    auto& c = children_[i];
    if (c.handle.address() != down.source)
      continue;
    c.handle = nullptr;
    living_->erase(i);
    if (ending_) {
      quit_when_alone();
      return;
    }
    if (c.retiring) {
      events_(c.spec.name + " has handed its work back and ended");
      return;
    }
    auto why = text_of(down.reason, self_->system());
    if (c.spec.essential || c.restarts >= options_.max_restarts) {
      ending_ = true;
      self_->send(owner_, failed_atom::value,
                  c.spec.name + " died: " + why
                    + (c.spec.essential ? "" : " (beyond supervisor.max_restarts)"));
      return;
    }
    events_(c.spec.name + " died: " + why);
    auto delay = options_.restart_delay_s * static_cast<double>(1U << std::min(c.restarts, 10));
    ++c.restarts;
    seen_.metrics().add(metrics::actors_restarted);
    self_->delayed_send(self_, after(delay), tick_atom::value, i);
    return;
  }
}

caf::behavior supervisor(caf::stateful_actor<supervisor_state>* self, supervisor_options options,
                         std::vector<child_spec> children, caf::actor owner,
                         std::function<void(const std::string&)> events) {
  return self->state.start(std::move(options), std::move(children), std::move(owner), std::move(events));
}

} // namespace millrace
