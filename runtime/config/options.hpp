#pragma once

// Options: what binds a field of a settings struct to its name, range and meaning in the JSON file.
// A struct is described once, by a function that calls the list for each field:
//
//   void describe(option_list& v, rollout_settings& s) {
//     v("eta", s.eta, in_range(0, 1024), "The largest staleness that may be trained on");
//   }
//
// Reading, writing, listing and `--set` are then loops over the list. A loss or a plugin uses the
// same for its own parameters.

#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace millrace {

/// The numbers that an option accepts.
struct number_range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_excluded = false;
  bool high_excluded = false;
};

constexpr number_range any_number() { return {}; }
constexpr number_range in_range(double low, double high) { return {low, high}; }
constexpr number_range at_least(double low) { return {.low = low}; }
constexpr number_range above(double low) { return {.low = low, .low_excluded = true}; }
/// low <= x < high.
constexpr number_range below(double low, double high) {
  return {.low = low, .high = high, .high_excluded = true};
}
/// low < x <= high.
constexpr number_range above_up_to(double low, double high) {
  return {.low = low, .high = high, .low_excluded = true};
}

/// An enumeration by its strings. Enumerators count from 0 in the order of the names.
struct choice_field {
  std::uint8_t* value; // the enumeration's own storage: a character type may alias it
  std::vector<std::string> names;
};

/// A list of structs, each of which has a `describe`.
struct list_field {
  /// Takes the list from JSON, or leaves the field and says what is wrong: (path inside, text).
  std::function<std::vector<std::pair<std::string, std::string>>(const nlohmann::json&)> assign;
  std::function<nlohmann::json()> value;
};

/// One option: its path below the list's root, and the field that it sets.
struct option {
  using target_type = std::variant<bool*, std::int32_t*, std::int64_t*, std::uint64_t*, float*,
                                   double*, std::string*, std::vector<std::string>*,
                                   nlohmann::json*, choice_field, list_field>;
  std::string path; ///< dotted: "rollout.eta"
  target_type target;
  number_range range;
  std::string help;

  /// "integer", "number", "text", …: what the file must hold.
  [[nodiscard]] std::string type_name() const;
  /// "0 to 1024", "above 0", "\"mask\", \"drop\" or \"wait\"", or empty when all is allowed.
  [[nodiscard]] std::string range_text() const;
  /// The field's present value.
  [[nodiscard]] nlohmann::json value() const;
  /// Sets the field, or leaves it and returns what was expected instead. Empty: it was set.
  [[nodiscard]] std::string assign(const nlohmann::json& value) const;
};

/// The options of a settings object, in the order of their description, with the sections that they
/// are in. Points into the object: it must outlive the list, and stay where it is.
class option_list {
public:
  struct section_info {
    std::string path;
    std::string help;
  };

  template <class T>
  void operator()(std::string_view name, T& field, const number_range& range,
                  std::string_view help) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>,
                  "only a number has a range");
    add(name, &field, range, help);
  }

  template <class T>
  void operator()(std::string_view name, T& field, std::string_view help) {
    if constexpr (std::is_enum_v<T>) {
      static_assert(std::is_same_v<std::underlying_type_t<T>, std::uint8_t>);
      choice_field choice{reinterpret_cast<std::uint8_t*>(&field), {}};
      for (auto n : names(T{}))
        choice.names.emplace_back(n);
      add(name, std::move(choice), {}, help);
    } else {
      add(name, &field, {}, help);
    }
  }

  /// A nested struct, described by the `describe` found for it.
  template <class T>
  void section(std::string_view name, T& fields, std::string_view help) {
    const auto outer = prefix_;
    enter(name, help);
    describe(*this, fields);
    prefix_ = outer;
  }

  /// A list of structs, described by the `describe` found for them.
  template <class T>
  void list(std::string_view name, std::vector<T>& field, std::string_view help);

  [[nodiscard]] const std::vector<option>& options() const { return options_; }
  [[nodiscard]] const std::vector<section_info>& sections() const { return sections_; }
  /// The option at this path, or nullptr.
  [[nodiscard]] const option* find(std::string_view path) const;
  [[nodiscard]] bool is_section(std::string_view path) const;
  /// Names of options and sections directly below a section ("" is the root).
  [[nodiscard]] std::vector<std::string> names_in(std::string_view section) const;
  [[nodiscard]] std::vector<std::string> paths() const;

private:
  void add(std::string_view name, option::target_type target, const number_range& range,
           std::string_view help);
  void enter(std::string_view name, std::string_view help);

  std::string prefix_;
  std::vector<option> options_;
  std::vector<section_info> sections_;
};

/// All that is wrong with an input, so that a user repairs it in one go.
class problem_list {
public:
  /// `where` names the file, `source` in every text; `root` is put before every path.
  explicit problem_list(std::string where, std::string root = {})
    : where_(std::move(where)), root_(std::move(root)) {}

  /// "where: root.path: text".
  void add(std::string_view path, std::string_view text);
  [[nodiscard]] bool empty() const { return texts_.empty(); }
  [[nodiscard]] const std::vector<std::string>& texts() const { return texts_; }
  /// Throws user_error with all of them, one a line, unless there are none.
  void throw_if_any() const;

private:
  std::string where_;
  std::string root_;
  std::vector<std::string> texts_;
};

/// Sets the fields from an object: every key that it holds must be known, and every value fit.
/// What it doesn't hold keeps its value.
void read_options(const option_list& list, const nlohmann::json& object, problem_list& problems);

/// The same, as pairs of path and text.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> problems_of(
  const option_list& list, const nlohmann::json& object);

/// As above for one struct that has a `describe`, throwing user_error with all problems: how a loss
/// or a plugin reads its parameters. `where` and `root` as in problem_list.
template <class T>
void read_params(T& fields, const nlohmann::json& object, const std::string& where,
                 const std::string& root) {
  option_list list;
  describe(list, fields);
  problem_list problems(where, root);
  read_options(list, object, problems);
  problems.throw_if_any();
}

/// Every option with its present value, nested as in the file.
[[nodiscard]] nlohmann::ordered_json write_options(const option_list& list);

template <class T>
void option_list::list(std::string_view name, std::vector<T>& field, std::string_view help) {
  list_field target;
  target.assign = [&field](const nlohmann::json& value) {
    std::vector<std::pair<std::string, std::string>> wrong;
    std::vector<T> items(value.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      option_list of_item;
      describe(of_item, items[i]);
      auto item_wrong = problems_of(of_item, value[i]);
      for (auto& [path, text] : item_wrong)
        wrong.emplace_back("[" + std::to_string(i) + "]" + (path.empty() ? "" : ".") + path,
                           std::move(text));
    }
    if (wrong.empty())
      field = std::move(items);
    return wrong;
  };
  target.value = [&field] {
    auto out = nlohmann::json::array();
    for (auto& item : field) {
      option_list of_item;
      describe(of_item, item);
      out.push_back(nlohmann::json(write_options(of_item)));
    }
    return out;
  };
  add(name, std::move(target), {}, help);
}

/// Sets one option from the command line's "path=value". The value is read as JSON where it is
/// JSON, and as text otherwise. \throws user_error
void set_option(const option_list& list, std::string_view assignment);

/// A table of all options for `millrace options`: path, type, default, range, meaning; wrapped at
/// `columns`. Only options whose path contains `filter` where that isn't empty.
[[nodiscard]] std::string format_options(const option_list& list, std::size_t columns = 100,
                                         std::string_view filter = {});

/// "a number (0.5)", "text ("x")", "an object": for error texts.
[[nodiscard]] std::string describe_value(const nlohmann::json& value);

} // namespace millrace
