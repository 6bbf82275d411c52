#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::policy_loss {

/// One parameter as declared where it is read.
struct param_description {
  std::string name;
  std::string type;     ///< "number", "integer", "bool" or the choices, "a | b"
  std::string default_; ///< "" where there is none
  std::string range;
  std::string meaning;
};

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// A closed interval.
struct range {
  double low = -infinity;
  double high = infinity;
};
inline constexpr range non_negative{0, infinity};
inline constexpr range unit{0, 1};

/// Reads a JSON object of parameters, each declared at the one place that reads it, and refuses
/// what is left over. Numbers may be the strings "inf" and "-inf".
class param_reader {
public:
  /// @throws millrace::user_error unless `params` is an object or null
  param_reader(const nlohmann::json& params, std::string_view where);

  double number(std::string_view name, double otherwise, range allowed, std::string_view meaning);
  std::optional<double> maybe_number(std::string_view name, range allowed,
                                     std::string_view meaning);
  std::int64_t integer(std::string_view name, std::int64_t otherwise, range allowed,
                       std::string_view meaning);
  bool boolean(std::string_view name, bool otherwise, std::string_view meaning);

  /// The index in `choices` of the value given; `otherwise` is an index as well.
  std::size_t choice(std::string_view name, const std::vector<std::string>& choices,
                     std::size_t otherwise, std::string_view meaning);

  [[nodiscard]] bool has(std::string_view name) const;

  /// All that was not read so far, for who checks it elsewhere (a plugin); it counts as read.
  nlohmann::json rest();

  /// @throws millrace::user_error naming a parameter that nobody read, and the nearest known names
  void finish() const;

  [[nodiscard]] const std::vector<param_description>& described() const { return described_; }
  [[nodiscard]] const std::string& where() const { return where_; }

  /// Throws a user_error about parameter `name`: path, what was found, what instead.
  [[noreturn]] void refuse(std::string_view name, const std::string& expected) const;

private:
  const nlohmann::json* take(std::string_view name);
  void describe(std::string_view name, std::string type, std::string otherwise, range allowed,
                std::string_view meaning);

  nlohmann::json params_;
  std::string where_;
  std::set<std::string, std::less<>> read_;
  std::vector<param_description> described_;
};

/// "WHERE: unknown KIND "x"; did you mean "y"? Known: …".
std::string unknown_name(std::string_view where, std::string_view kind, std::string_view name,
                         const std::vector<std::string>& known);

/// Up to three of `known` that are near to `name` by edit distance, nearest first.
std::vector<std::string> near_names(std::string_view name, const std::vector<std::string>& known);

} // namespace millrace::policy_loss
