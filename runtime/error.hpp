#pragma once

#include <source_location>
#include <stdexcept>
#include <type_traits>
#include <string>

namespace millrace {

/// The user's input, files or machine are at fault. The text says where, what was found, and what
/// would be right; it is shown as it is, without a stack or a source line.
class user_error : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

/// A rule that must always hold was broken: a bug in Millrace (or in a plugin). Stops the run.
class invariant_error : public std::logic_error {
public:
  using std::logic_error::logic_error;
};

/// Throws invariant_error, naming the place, unless `holds`. `what` shows the operands.
inline void ensure(bool holds, const std::string& what,
                   std::source_location at = std::source_location::current()) {
  if (!holds)
    throw invariant_error(std::string(at.file_name()) + ":" + std::to_string(at.line()) + ": "
                          + what + " (a bug in millrace: please report it)");
}

/// As above for the hot path: the text is only made when it is needed.
template <class MakeText>
  requires std::is_invocable_r_v<std::string, MakeText>
void ensure(bool holds, MakeText&& what,
            std::source_location at = std::source_location::current()) {
  if (!holds) [[unlikely]]
    ensure(false, std::string(what()), at);
}

} // namespace millrace
