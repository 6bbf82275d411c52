#pragma once

#include "runtime/introspection.hpp"
#include "runtime/metrics/metric.hpp"

#include <span>
#include <string_view>

namespace millrace {

// Reading figures out of snapshots, over all actors that have them. 0 where none does.

/// Sum over actors, of one label value or of all.
[[nodiscard]] double total(std::span<const actor_snapshot> actors, const metric& m,
                           std::string_view label = {});
/// Mean over the actors that have it.
[[nodiscard]] double mean(std::span<const actor_snapshot> actors, const metric& m,
                          std::string_view label = {});
[[nodiscard]] double largest(std::span<const actor_snapshot> actors, const metric& m,
                             std::string_view label = {});
/// A histogram's counts added up over actors.
[[nodiscard]] histogram_value merged(std::span<const actor_snapshot> actors, const histogram& m,
                                     std::string_view label = {});
/// The first actor of a kind, or nullptr.
[[nodiscard]] const actor_snapshot* first_of(std::span<const actor_snapshot> actors,
                                             std::string_view kind);

} // namespace millrace
