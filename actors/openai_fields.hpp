#pragma once

#include "actors/openai_protocol.hpp"

#include <cstdint>
#include <initializer_list>
#include <string>

namespace millrace::openai {

/// Throws api_error about a parameter: 400, "PARAMETER: what".
[[noreturn]] void refuse(const std::string& parameter, const std::string& what,
                         const std::string& code = {});

/// A value for an error's text, cut where it is long.
std::string shown(const json& v);

/// Throws api_error for a field that neither OpenAI's API nor vLLM or SGLang have, naming the
/// nearest one that they have, and for one that isn't supported here, with a value that would
/// change the answer. What makes no difference is accepted.
void check_fields(const json& body, bool chat);

/// A request's body. \throws api_error 400 when it is no JSON, or is nested so deeply that whoever walks
/// it could run out of stack
[[nodiscard]] json parsed(const std::string& body);

/// A request's fields, each read with its range. Absent and null are the same.
class fields {
public:
  explicit fields(const json& body) : body_(body) {}

  /// Null where it is absent.
  [[nodiscard]] const json& get(const char* name) const;
  [[nodiscard]] double number(const char* name, double low, double high, double otherwise) const;
  [[nodiscard]] std::int64_t integer(const char* name, std::int64_t low, std::int64_t high,
                                     std::int64_t otherwise) const;
  [[nodiscard]] bool flag(const char* name) const;
  /// Null where it is absent.
  [[nodiscard]] const json& object(const char* name) const;
  [[nodiscard]] const json& list(const char* name) const;
  /// Accepts only what makes no difference.
  void only(const char* name, std::initializer_list<json> harmless) const;

private:
  const json& body_;
};

} // namespace millrace::openai
