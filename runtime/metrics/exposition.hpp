#pragma once

#include "runtime/introspection.hpp"

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <string>

namespace millrace {

/// Prometheus text exposition (version 0.0.4) of all actors, with the labels `actor` and `node`
/// besides the metric's own. HELP and TYPE come from the catalogue.
[[nodiscard]] std::string prometheus_text(std::span<const actor_snapshot> actors);

/// What `/introspect` and `millrace inspect --json` show: all fields, metrics by name; those with a
/// label as an object by its values.
[[nodiscard]] nlohmann::ordered_json to_json(const actor_snapshot& actor);

/// Reads what to_json() wrote. What is missing stays empty, what is no snapshot becomes one without
/// a kind.
[[nodiscard]] actor_snapshot snapshot_from_json(const nlohmann::json& written);

/// A table of the whole catalogue, for documentation and `millrace options --metrics`.
[[nodiscard]] std::string catalogue_table();

} // namespace millrace
