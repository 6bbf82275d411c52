#include "runtime/short_forms.hpp"

#include <cstdarg>
#include <cstdio>

namespace millrace {

std::string printed(const char* format, ...) {
  va_list values, again;
  va_start(values, format);
  va_copy(again, values);
  std::string out(static_cast<std::size_t>(std::vsnprintf(nullptr, 0, format, values)), '\0');
  std::vsnprintf(out.data(), out.size() + 1, format, again);
  va_end(again);
  va_end(values);
  return out;
}

std::size_t columns_of(std::string_view text) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') { // a colour
      while (i < text.size() && text[i] != 'm')
        ++i;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80) {
      ++n;
    }
  }
  return n;
}

std::string short_duration(double s) {
  if (s < 1e-3)
    return printed("%.0f µs", s * 1e6);
  if (s < 1)
    return printed(s < 0.01 ? "%.1f ms" : "%.0f ms", s * 1e3);
  if (s < 120)
    return printed(s < 10 ? "%.1f s" : "%.0f s", s);
  auto whole = static_cast<long long>(s);
  if (s < 7200)
    return printed("%lld m %02lld", whole / 60, whole % 60);
  return printed("%lld h %02lld", whole / 3600, whole % 3600 / 60);
}

std::string short_number(double x) {
  if (x >= 1e9)
    return printed("%.1fG", x / 1e9);
  if (x >= 1e6)
    return printed("%.1fM", x / 1e6);
  return x >= 1e4 ? printed("%.1fk", x / 1e3) : printed("%.0f", x);
}

} // namespace millrace
