#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace millrace {

/// What becomes of the KV cache of running sequences when a generator's weights change.
enum class kv_policy : std::uint8_t { recompute, keep };
constexpr std::array<std::string_view, 2> names(kv_policy) { return {"recompute", "keep"}; }

} // namespace millrace
