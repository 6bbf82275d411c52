#pragma once

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <sstream>
#include <string>

namespace millrace {

/// What an option of the command line may be: a number from `least` to `most`. Unlike CLI::Range it
/// takes no NaN, which is neither below nor above anything.
inline CLI::Validator number_between(double least, double most) {
  std::ostringstream range;
  range << "a number from " << least << " to " << most;
  return {[=, expected = range.str()](std::string& text) {
            double x = 0;
            const bool fits = CLI::detail::lexical_cast(text, x) && x >= least && x <= most;
            return fits ? std::string() : "found " + text + ", expected " + expected;
          },
          range.str()};
}

/// A whole number from 0 to 2^64 − 1: CLI11 would wrap what lies outside.
inline CLI::Validator whole_number() {
  return {[](std::string& text) {
            std::uint64_t x = 0;
            const auto* end = text.data() + text.size();
            const auto read = std::from_chars(text.data(), end, x);
            return read.ec == std::errc() && read.ptr == end
                     ? std::string() : "found \"" + text + "\", expected a whole number from 0";
          },
          "a whole number"};
}

} // namespace millrace
