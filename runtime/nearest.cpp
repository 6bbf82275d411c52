#include "runtime/nearest.hpp"

#include <algorithm>
#include <cctype>
#include <vector>

namespace millrace {
namespace {

std::string folded(std::string_view s) {
  std::string out;
  for (char c : s)
    out += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

} // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the dynamic programme: a swap of neighbours looks two rows back.
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j)
    last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  // Text of a user can be of any length; nothing that long is a slip of the pen.
  if (word.empty() || word.size() > 64)
    return {};
  const auto w = folded(word);
  std::string best;
  std::size_t best_cost = std::max<std::size_t>(1, w.size() * 2 / 5) + 1;
  for (const auto& candidate : candidates) {
    const auto c = folded(candidate);
    auto cost = edit_distance(w, c);
    // One contained in the other is a likely shortening: "max_token_count", "lr_warmup".
    if (std::min(c.size(), w.size()) >= 3
        && (c.find(w) != std::string::npos || w.find(c) != std::string::npos))
      cost = std::min<std::size_t>(cost, 2);
    if (cost < best_cost) {
      best_cost = cost;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  auto found = nearest(word, candidates);
  return found.empty() ? std::string{} : " (did you mean \"" + found + "\"?)";
}

std::string quoted_list(std::span<const std::string> words) {
  std::string out;
  for (const auto& w : words)
    out += (out.empty() ? "\"" : ", \"") + w + "\"";
  return out;
}

} // namespace millrace
