// JSON → options, `--set path=value` → options, options → JSON.

#include "runtime/config/options.hpp"
#include "runtime/nearest.hpp"

#include <algorithm>

namespace millrace {
namespace {

std::string join(std::string_view section, std::string_view name) {
  return section.empty() ? std::string(name) : std::string(section) + "." + std::string(name);
}

std::string_view last_name(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

/// Where an unknown key may have been meant to go: its neighbours first, then the same name in
/// another section, then any path that resembles it.
std::string suggestion(const option_list& list, std::string_view section, std::string_view key) {
  const auto here = list.names_in(section);
  if (auto found = nearest(key, here); !found.empty())
    return " (did you mean \"" + join(section, found) + "\"?)";
  for (const auto& path : list.paths())
    if (last_name(path) == key)
      return " (did you mean \"" + path + "\"?)";
  if (auto found = nearest(join(section, key), list.paths()); !found.empty())
    return " (did you mean \"" + found + "\"?)";
  return "; known here: " + quoted_list(here);
}

using problem_pairs = std::vector<std::pair<std::string, std::string>>;

void read_section(const option_list& list, const nlohmann::json& object, const std::string& section,
                  problem_pairs& problems) {
  if (!object.is_object()) {
    problems.emplace_back(section, "found " + describe_value(object) + ", expected an object with "
                                     + quoted_list(list.names_in(section)));
    return;
  }
  for (const auto& [key, value] : object.items()) {
    const auto path = join(section, key);
    if (list.is_section(path))
      read_section(list, value, path, problems);
    else if (const auto* o = list.find(path)) {
      const auto* items = std::get_if<list_field>(&o->target);
      if (items && value.is_array()) {
        for (auto& [inside, text] : items->assign(value))
          problems.emplace_back(path + inside, std::move(text));
      } else if (auto expected = o->assign(value); !expected.empty())
        problems.emplace_back(path, "found " + describe_value(value) + ", expected " + expected);
    } else
      problems.emplace_back(path, "unknown key" + suggestion(list, section, key));
  }
}

/// The command line's text as the JSON that the option wants.
nlohmann::json command_line_value(const option& o, const std::string& text) {
  auto value = nlohmann::json::parse(text, nullptr, false);
  if (std::holds_alternative<std::string*>(o.target) || std::holds_alternative<choice_field>(o.target))
    return value.is_string() ? value : nlohmann::json(text);
  if (std::holds_alternative<std::vector<std::string>*>(o.target) && !value.is_array()) {
    auto items = nlohmann::json::array();
    for (std::size_t from = 0; from < text.size();) {
      const auto comma = std::min(text.find(',', from), text.size());
      items.push_back(text.substr(from, comma - from));
      from = comma + 1;
    }
    return items;
  }
  return value.is_discarded() ? nlohmann::json(text) : value;
}

/// "algorithm.loss.params.eps=0.3": a key inside an option that is itself an object.
bool set_inside_object(const option_list& list, const std::string& path, const std::string& text) {
  for (auto dot = path.rfind('.'); dot != std::string::npos && dot > 0;
       dot = path.rfind('.', dot - 1)) {
    const auto* o = list.find(path.substr(0, dot));
    if (!o)
      continue;
    auto* const* object = std::get_if<nlohmann::json*>(&o->target);
    if (!object)
      return false;
    auto value = nlohmann::json::parse(text, nullptr, false);
    auto* at = *object;
    for (auto from = dot + 1;;) {
      const auto end = std::min(path.find('.', from), path.size());
      if (!at->is_object() && !at->is_null())
        *at = nlohmann::json::object();
      at = &(*at)[path.substr(from, end - from)];
      if (end == path.size())
        break;
      from = end + 1;
    }
    *at = value.is_discarded() ? nlohmann::json(text) : value;
    return true;
  }
  return false;
}

/// "cluster.nodes.0.host=n1": a field of an item of a list. Says whether the path leads into a list.
bool set_inside_list(const option_list& list, const std::string& path, const std::string& text,
                     const std::string& where) {
  for (auto dot = path.rfind('.'); dot != std::string::npos && dot > 0;
       dot = path.rfind('.', dot - 1)) {
    const auto* o = list.find(path.substr(0, dot));
    const auto* items = o ? std::get_if<list_field>(&o->target) : nullptr;
    if (!items)
      continue;
    auto value = items->value();
    auto inside = path.substr(dot);
    std::replace(inside.begin(), inside.end(), '.', '/');
    try {
      auto item = nlohmann::json::parse(text, nullptr, false);
      value.at(nlohmann::json::json_pointer(inside)) = item.is_discarded() ? nlohmann::json(text)
                                                                           : item;
    } catch (const nlohmann::json::exception&) {
      throw user_error(where + ": " + o->path + " has " + std::to_string(items->value().size())
                       + " entries and no \"" + path.substr(dot + 1)
                       + "\"; expected NUMBER.FIELD behind it, counted from 0");
    }
    for (const auto& [at, problem] : items->assign(value))
      throw user_error(where + ": " + o->path + at + ": " + problem);
    return true;
  }
  return false;
}

} // namespace

void problem_list::add(std::string_view path, std::string_view text) {
  auto place = join(root_, path);
  if (path.empty())
    place = root_;
  texts_.push_back(where_ + ": " + (place.empty() ? "" : place + ": ") + std::string(text));
}

void problem_list::throw_if_any() const {
  if (texts_.empty())
    return;
  std::string all;
  for (const auto& t : texts_)
    all += (all.empty() ? "" : "\n") + t;
  throw user_error(all);
}

void read_options(const option_list& list, const nlohmann::json& object, problem_list& problems) {
  for (const auto& [path, text] : problems_of(list, object))
    problems.add(path, text);
}

std::vector<std::pair<std::string, std::string>> problems_of(const option_list& list,
                                                             const nlohmann::json& object) {
  problem_pairs out;
  read_section(list, object, "", out);
  return out;
}

nlohmann::ordered_json write_options(const option_list& list) {
  auto out = nlohmann::ordered_json::object();
  for (const auto& o : list.options()) {
    auto* at = &out;
    for (std::size_t from = 0;;) {
      const auto end = std::min(o.path.find('.', from), o.path.size());
      at = &(*at)[o.path.substr(from, end - from)];
      if (end == o.path.size())
        break;
      from = end + 1;
    }
    *at = o.value();
  }
  return out;
}

void set_option(const option_list& list, std::string_view assignment) {
  const auto equals = assignment.find('=');
  const auto where = "--set " + std::string(assignment);
  if (equals == std::string_view::npos || equals == 0)
    throw user_error(where + ": expected path=value, for example rollout.eta=4");
  const std::string path(assignment.substr(0, equals));
  const std::string text(assignment.substr(equals + 1));
  if (const auto* o = list.find(path)) {
    const auto value = command_line_value(*o, text);
    if (auto expected = o->assign(value); !expected.empty())
      throw user_error(where + ": found " + describe_value(value) + ", expected " + expected);
    return;
  }
  if (set_inside_object(list, path, text) || set_inside_list(list, path, text, where))
    return;
  if (list.is_section(path))
    throw user_error(where + ": \"" + path + "\" is a section; set one of its options: "
                     + quoted_list(list.names_in(path)));
  const auto dot = path.rfind('.');
  const auto section = dot == std::string::npos ? std::string{} : path.substr(0, dot);
  if (section.empty() || list.is_section(section))
    throw user_error(where + ": unknown option" + suggestion(list, section, last_name(path)));
  throw user_error(where + ": unknown option" + did_you_mean(path, list.paths()));
}

} // namespace millrace
