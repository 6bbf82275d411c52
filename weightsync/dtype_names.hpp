#pragma once

#include "runtime/error.hpp"
#include "runtime/tensor_view.hpp"

#include <array>
#include <string>
#include <string_view>

namespace millrace::weightsync {

/// In the order of the enumeration.
inline constexpr std::array<std::string_view, 8> dtype_names = {"f32",     "bf16", "f16", "i8",
                                                                "f8_e4m3", "i32",  "i64", "u8"};

inline std::string to_string(dtype t) {
  return std::string(dtype_names.at(static_cast<std::size_t>(t)));
}

/// Throws user_error for a name that is none of dtype_names.
inline dtype dtype_from_string(std::string_view name) {
  for (std::size_t i = 0; i < dtype_names.size(); ++i)
    if (dtype_names[i] == name)
      return static_cast<dtype>(i);
  throw user_error("unknown tensor type \"" + std::string(name)
                   + "\", expected one of f32, bf16, f16, i8, f8_e4m3, i32, i64, u8");
}

} // namespace millrace::weightsync
