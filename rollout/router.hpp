#pragma once

#include "runtime/ids.hpp"

#include <cstdint>
#include <optional>
#include <span>

namespace millrace {

/// What routing knows of a generator.
struct generator_load {
  bool up = false;
  version acknowledged;       ///< weights that it samples with now
  std::int64_t capacity = 0;  ///< rollouts it takes at once
  std::int64_t rollouts = 0;  ///< outstanding there
  std::int64_t tokens = 0;    ///< outstanding there: prompt + what may still be generated
};

/// Picks a generator that is up, has acknowledged `at_least`, and has room: the one with the fewest
/// outstanding tokens. A group's samples stay together (one prefill of the prompt serves them all)
/// while the generator that has the `sibling` is no more than `slack` tokens above the least loaded.
inline std::optional<std::size_t> route(std::span<const generator_load> generators,
                                        version at_least, std::optional<std::size_t> sibling,
                                        std::int64_t slack) {
  auto fits = [&](const generator_load& g) {
    return g.up && g.acknowledged >= at_least && g.rollouts < g.capacity;
  };
  std::optional<std::size_t> least;
  for (std::size_t i = 0; i < generators.size(); ++i)
    if (fits(generators[i]) && (!least || generators[i].tokens < generators[*least].tokens))
      least = i;
  if (least && sibling && *sibling < generators.size() && fits(generators[*sibling])
      && generators[*sibling].tokens <= generators[*least].tokens + slack)
    return sibling;
  return least;
}

} // namespace millrace
