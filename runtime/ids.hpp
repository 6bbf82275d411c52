#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace millrace {

/// How many weight updates had been published: 0 is the initial policy. Only ever grows.
struct version {
  std::int32_t value = 0;

  constexpr auto operator<=>(const version&) const = default;
  [[nodiscard]] constexpr version next() const { return {value + 1}; }
};

/// What prompt, tool and padding tokens carry: never sampled, never trained on.
inline constexpr version no_version{-1};

/// One of the n answers to a prompt. `group` numbers the admissions of a run (0, 1, 2, …), so two
/// admissions of the same prompt are two groups; `sample` counts within the group.
struct rollout_id {
  std::int64_t group = -1;
  std::int32_t sample = 0;

  constexpr auto operator<=>(const rollout_id&) const = default;
};

inline std::string to_string(version v) { return "v" + std::to_string(v.value); }
inline std::string to_string(rollout_id id) {
  return std::to_string(id.group) + "." + std::to_string(id.sample);
}

/// Staleness of a token at a training step: the version being trained from minus the token's.
/// The one definition, used by admission, replay, trainer and every check.
constexpr std::int32_t staleness(version training_from, version token) {
  return training_from.value - token.value;
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, version& x) {
  return f(x.value);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rollout_id& x) {
  return f(x.group, x.sample);
}

} // namespace millrace

template <>
struct std::hash<millrace::rollout_id> {
  std::size_t operator()(const millrace::rollout_id& id) const noexcept {
    return std::hash<std::int64_t>{}(id.group * 1'000'003 + id.sample);
  }
};

template <>
struct std::hash<millrace::version> {
  std::size_t operator()(const millrace::version& v) const noexcept {
    return std::hash<std::int32_t>{}(v.value);
  }
};
