#pragma once

#include <CLI/CLI.hpp>

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

} // namespace millrace
