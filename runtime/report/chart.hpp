#pragma once

// Curves and bars as inline SVG. Colours are CSS variables (--c1, --c2, …), so that one drawing
// serves light and dark pages.

#include <string>
#include <string_view>
#include <vector>

namespace millrace::report {

/// How numbers of an axis are written.
enum class number_style : std::uint8_t { plain, percent, whole, seconds };

struct point {
  double x = 0;
  double y = 0; ///< not finite: a gap
};

struct series {
  std::string name;
  std::vector<point> points; ///< by ascending x
  int colour = 1;            ///< --cN
  bool smooth = false;       ///< a smoothed curve over the faint original
  bool peaks = false;        ///< drawn in stairs; of too many points the highest are drawn
  bool dots = false;         ///< single measurements, joined by a thin line
  std::vector<double> spread; ///< a band of ± this around the curve, one per point; or empty
};

struct reference_line {
  double y = 0;
  std::string label;
};

struct chart {
  std::string title;
  std::string note; ///< one line on how to read it
  std::vector<series> curves;
  std::vector<reference_line> references;
  number_style style = number_style::plain;
  bool from_zero = true; ///< the axis includes 0
  double at_least = 0;   ///< the axis reaches this
};

struct bar {
  std::string label;
  double value = 0;
  bool forbidden = false; ///< must be 0: drawn as an error when it isn't
};

struct bar_chart {
  std::string title;
  std::string note;
  std::string axis; ///< what the bars are by
  std::vector<bar> bars; ///< values are shares of 1
};

/// A <figure> with heading, legend and drawing; empty when there is nothing to draw.
[[nodiscard]] std::string draw(const chart& c);
[[nodiscard]] std::string draw(const bar_chart& c);

/// "12.3k", "0.042", "37%", "120 µs".
[[nodiscard]] std::string format(double x, number_style style = number_style::plain);
/// For text in HTML and in quoted attributes.
[[nodiscard]] std::string escape(std::string_view text);

} // namespace millrace::report
