#include "rollout/answer_form.hpp"

#include "rollout/final_answer.hpp"

#include <array>
#include <cctype>

namespace millrace {

namespace {

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_beyond_ascii(char c) { return (static_cast<unsigned char>(c) & 0x80U) != 0; }

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

/// A command's name must end there: \left, but not \leftarrow.
void remove_command(std::string& text, std::string_view name) {
  for (auto at = text.find(name); at != std::string::npos; at = text.find(name, at))
    if (const auto end = at + name.size(); end < text.size() && is_letter(text[end]))
      at = end;
    else
      text.erase(at, name.size());
}

/// \name{X} → X, innermost brackets only.
void unwrap(std::string& text, std::string_view opening) {
  for (auto at = text.find(opening); at != std::string::npos; at = text.find(opening, at)) {
    const auto end = text.find_first_of("{}", at + opening.size());
    if (end == std::string::npos || text[end] == '{')
      return;
    text.erase(end, 1);
    text.erase(at, opening.size());
  }
}

/// \frac12 and \frac1{2} → \frac{1}{2}.
void complete_fractions(std::string& text) {
  constexpr std::string_view name = "\\frac";
  for (auto at = text.find(name); at != std::string::npos; at = text.find(name, at)) {
    at += name.size();
    auto next = at;
    for (int part = 0; part < 2 && next < text.size(); ++part) {
      if (is_digit(text[next])) {
        text.insert(next + 1, 1, '}');
        text.insert(next, 1, '{');
        next += 3;
      } else if (const auto end = text.find('}', next); text[next] == '{' && end != std::string::npos) {
        next = end + 1;
      } else {
        break;
      }
    }
  }
}

/// As plain_form, with its spaces.
std::string in_one_form(std::string_view answer) {
  std::string text(answer);
  for (const auto* name : {"\\left", "\\right", "\\displaystyle"})
    remove_command(text, name);
  for (const auto* space : {"\\!", "\\,", "\\;", "\\:", "\\ ", "~"})
    replace_all(text, space, " ");
  replace_all(text, "\\dfrac", "\\frac");
  replace_all(text, "\\tfrac", "\\frac");
  for (const auto* opening : {"\\text{", "\\mathrm{", "\\textbf{", "\\mathbf{", "\\mbox{"})
    unwrap(text, opening);
  for (const auto* degrees : {"^{\\circ}", "^\\circ", "\u00B0"})
    replace_all(text, degrees, "");
  complete_fractions(text);
  auto view = trimmed(text);
  if (view.size() > 1 && view.back() == '.')
    view = trimmed(view.substr(0, view.size() - 1));
  if (view.size() > 2 && view.front() == '$' && view.back() == '$')
    view = trimmed(view.substr(1, view.size() - 2));
  return std::string(view);
}

/// Whether anything but one number, signs of money and percent, and words is there.
bool is_expression(std::string text) {
  for (auto at = text.find("\\frac{"); at != std::string::npos; at = text.find("\\frac{", at)) {
    const auto middle = text.find("}{", at);
    const auto end = middle == std::string::npos ? middle : text.find('}', middle + 2);
    if (end == std::string::npos)
      return true;
    const auto inside = text.substr(at + 6, end - at - 6);
    if (inside.find_first_not_of("0123456789{}") != std::string::npos)
      return true;
    text.replace(at, end + 1 - at, 1, '0');
  }
  for (const auto* sign : {"{,}", "\\%", "\\$"})
    replace_all(text, sign, "");
  if (text.find_first_of("^_()[]{}\\|<>=*") != std::string::npos)
    return true;
  for (std::size_t i = 1; i < text.size(); ++i) {
    const char before = text[i - 1], c = text[i];
    const bool exponent = (before == 'e' || before == 'E') && i >= 2 && is_digit(text[i - 2]);
    if (is_letter(before) && (is_digit(c) || c == '/') && !exponent)
      return true; // x2, pi/4
    if (is_digit(before) && (is_beyond_ascii(c) || (is_letter(c) && c != 'e' && c != 'E')))
      return true; // 2x, 4π
    if (c == '+' && !exponent)
      return true; // x + 1
  }
  return false;
}

} // namespace

std::string plain_form(std::string_view answer) {
  auto text = in_one_form(answer);
  std::erase_if(text, [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; });
  return text;
}

std::optional<number> only_number(std::string_view answer) {
  const auto text = in_one_form(answer);
  std::string_view rest = text;
  if (const auto equals = rest.find('='); equals != rest.npos && trimmed(rest.substr(0, equals)).size() <= 2)
    rest = trimmed(rest.substr(equals + 1));
  number_scanner scan(rest);
  const auto found = scan.next();
  if (!found || scan.next() || is_expression(std::string(rest)))
    return {};
  return found;
}

} // namespace millrace
