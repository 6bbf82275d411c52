#include "runtime/report/chart.hpp"

#include "runtime/short_forms.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace millrace::report {
namespace {

constexpr double width = 600, height = 230;
constexpr double left = 48, right = 14, top = 12, bottom = 26;
constexpr std::size_t most_points = 500; // more than a screen shows

std::string fixed(double x, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, x);
  std::string text = buffer;
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.ends_with('.'))
      text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

/// Coordinates: a tenth of a pixel is enough.
std::string px(double x) { return fixed(x, 1); }

struct scale {
  double low = 0, high = 1;   // of the data
  double from = 0, to = 1;    // of the drawing
  [[nodiscard]] double operator()(double v) const {
    return high == low ? (from + to) / 2 : from + (v - low) / (high - low) * (to - from);
  }
};

/// 1, 2 or 5 times a power of ten, such that about `count` steps cover the span.
double nice_step(double span, int count, bool whole) {
  const double raw = span / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = power * 10;
  for (double f : {1.0, 2.0, 5.0})
    if (f * power >= raw * 0.999) {
      step = f * power;
      break;
    }
  return whole ? std::max(1.0, std::round(step)) : step;
}

std::vector<double> ticks(double low, double high, int count, bool whole) {
  std::vector<double> out;
  if (!(high > low))
    return {low};
  const double step = nice_step(high - low, count, whole);
  const double first = std::ceil(low / step - 1e-9) * step;
  for (int k = 0; k <= 3 * count; ++k) // counted, since a tiny step can vanish in a huge number
    if (const double t = first + k * step; t <= high + step * 1e-9)
      out.push_back(std::abs(t) < step * 1e-9 ? 0 : t);
  return out;
}

/// Neighbouring points averaged (of peaks, the highest is taken) until few enough are left to draw.
series thinned(const series& s) {
  if (s.points.size() <= most_points)
    return s;
  auto out = s;
  out.points.clear();
  out.spread.clear();
  const std::size_t n = s.points.size();
  for (std::size_t k = 0; k < most_points; ++k) {
    const std::size_t from = k * n / most_points, to = (k + 1) * n / most_points;
    double sum = 0, spread = 0, highest = -std::numeric_limits<double>::infinity();
    std::size_t finite = 0;
    for (std::size_t i = from; i < to; ++i)
      if (std::isfinite(s.points[i].y)) {
        highest = std::max(highest, s.points[i].y);
        sum += s.points[i].y;
        spread += s.spread.empty() ? 0 : s.spread[i];
        ++finite;
      }
    const double none = std::numeric_limits<double>::quiet_NaN();
    out.points.push_back({s.points[to - 1].x, finite == 0 ? none : s.peaks ? highest : sum / double(finite)});
    if (!s.spread.empty())
      out.spread.push_back(finite ? spread / double(finite) : 0);
  }
  return out;
}

/// Average weighted by a bell of about a fifteenth of the run, centred, so that nothing lags.
std::vector<point> smoothed(const std::vector<point>& points) {
  const auto n = static_cast<std::ptrdiff_t>(points.size());
  const double sigma = std::max(1.0, double(n) / 50);
  const auto reach = static_cast<std::ptrdiff_t>(3 * sigma);
  std::vector<point> out;
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    double sum = 0, weight = 0;
    for (auto k = std::max<std::ptrdiff_t>(0, i - reach); k <= std::min(n - 1, i + reach); ++k)
      if (const auto& p = points[std::size_t(k)]; std::isfinite(p.y)) {
        const double d = double(k - i) / sigma, w = std::exp(-d * d / 2);
        sum += w * p.y;
        weight += w;
      }
    const auto& p = points[std::size_t(i)];
    out.push_back({p.x, weight > 0 ? sum / weight : p.y});
  }
  return out;
}

std::string path(const std::vector<point>& points, const scale& x, const scale& y,
                 bool stairs = false) {
  std::string d;
  bool pen_down = false;
  for (const auto& p : points) {
    if (!std::isfinite(p.y)) {
      pen_down = false;
      continue;
    }
    if (pen_down && stairs)
      d += "H" + px(x(p.x)) + "V" + px(y(p.y));
    else
      d += (pen_down ? "L" : "M") + px(x(p.x)) + " " + px(y(p.y));
    pen_down = true;
  }
  return d;
}

/// The upper and the lower edge of the band around a curve.
struct band_edges {
  std::vector<point> upper, lower;
};

band_edges edges_of(const series& s) {
  std::vector<point> middle = s.points, spread;
  for (std::size_t i = 0; i < s.spread.size(); ++i)
    spread.push_back({s.points[i].x, s.spread[i]});
  if (s.smooth) {
    middle = smoothed(middle);
    spread = smoothed(spread);
  }
  band_edges out;
  for (std::size_t i = 0; i < spread.size(); ++i)
    if (std::isfinite(middle[i].y) && std::isfinite(spread[i].y)) {
      out.upper.push_back({middle[i].x, middle[i].y + spread[i].y});
      out.lower.push_back({middle[i].x, middle[i].y - spread[i].y});
    }
  return out;
}

std::string band(const series& s, const scale& x, const scale& y) {
  const auto edges = edges_of(s);
  std::string there, back;
  for (std::size_t i = 0; i < edges.upper.size(); ++i) {
    const auto at = px(x(edges.upper[i].x)) + " ";
    there += (there.empty() ? "M" : "L") + at + px(y(edges.upper[i].y));
    back = "L" + at + px(y(edges.lower[i].y)) + back;
  }
  return there.empty() ? std::string{}
                       : "<path class=band style=\"--c:var(--c" + std::to_string(s.colour) + ")\" d=\""
                           + there + back + "Z\"/>";
}

std::string curve(const series& s, const scale& x, const scale& y) {
  const auto colour = " style=\"--c:var(--c" + std::to_string(s.colour) + ")\"";
  std::string out = s.spread.empty() ? std::string{} : band(s, x, y);
  const auto line = path(s.points, x, y, s.peaks);
  if (s.smooth && s.points.size() > 8) {
    out += "<path class=\"line faint\"" + colour + " d=\"" + line + "\"/>";
    out += "<path class=line" + colour + " d=\"" + path(smoothed(s.points), x, y) + "\"/>";
  } else {
    out += "<path class=\"line" + std::string(s.dots || s.peaks ? " thin" : "") + "\"" + colour + " d=\"" + line
           + "\"/>";
  }
  if (s.dots || s.points.size() == 1)
    for (const auto& p : s.points)
      if (std::isfinite(p.y))
        out += "<circle class=dot" + colour + " r=4 cx=" + px(x(p.x)) + " cy=" + px(y(p.y)) + " />";
  return out;
}

std::string axes(const scale& x, const scale& y, number_style style) {
  std::string out;
  for (double t : ticks(y.low, y.high, 4, style == number_style::whole)) {
    const auto at = px(y(t));
    out += "<path class=rule d=\"M" + px(left) + " " + at + "H" + px(width - right) + "\"/>";
    out += "<text class=tick text-anchor=end x=" + px(left - 8) + " y=" + px(y(t) + 3.5) + ">"
           + format(t, style) + "</text>";
  }
  out += "<text class=tick text-anchor=end x=" + px(left - 8) + " y=" + px(height - 7) + ">step</text>";
  for (double t : ticks(x.low, x.high, 6, true))
    out += "<text class=tick text-anchor=middle x=" + px(x(t)) + " y=" + px(height - 7) + ">"
           + format(t, number_style::whole) + "</text>";
  return out;
}

std::string references(const chart& c, const scale& y) {
  std::string out;
  for (const auto& r : c.references) {
    const auto at = y(r.y);
    out += "<path class=reference d=\"M" + px(left) + " " + px(at) + "H" + px(width - right) + "\"/>";
    out += "<text class=\"tick strong\" text-anchor=end x=" + px(width - right) + " y="
           + px(at > top + 14 ? at - 5 : at + 13) + ">" + escape(r.label) + "</text>";
  }
  return out;
}

struct extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double v) {
    if (std::isfinite(v)) {
      low = std::min(low, v);
      high = std::max(high, v);
    }
  }
  [[nodiscard]] bool empty() const { return low > high; }
};

scale y_scale(const chart& c, const std::vector<series>& curves) {
  extent e;
  for (const auto& s : curves) {
    const auto edges = edges_of(s);
    for (const auto* points : {&s.points, &edges.upper, &edges.lower})
      for (const auto& p : *points)
        e.add(p.y);
  }
  for (const auto& r : c.references)
    e.add(r.y);
  if (c.from_zero)
    e.add(0);
  if (c.at_least != 0)
    e.add(c.at_least);
  if (e.high == e.low) // a flat curve: in the middle, or on the ground when it is 0
    e.high += e.high == 0 ? 1 : std::abs(e.high) * 0.5;
  double room = (e.high - e.low) * 0.06;
  for (const auto& r : c.references)
    if (r.y == e.high)
      room = (e.high - e.low) * 0.16; // for its label
  if (!(c.style == number_style::percent && e.high <= 1 && c.at_least == 1))
    e.high += room;
  if (!c.from_zero || e.low < 0)
    e.low -= room;
  return {e.low, e.high, height - bottom, top};
}

/// Names with their last values; the swatch shows what is what.
std::string legend(const std::vector<series>& curves, number_style style) {
  std::string out = "<div class=legend>";
  for (const auto& s : curves) {
    double last = std::numeric_limits<double>::quiet_NaN();
    for (const auto& p : s.smooth ? smoothed(s.points) : s.points)
      if (std::isfinite(p.y))
        last = p.y;
    out += "<span><i style=\"background:var(--c" + std::to_string(s.colour) + ")\"></i>"
           + escape(s.name) + " <b>" + format(last, style) + "</b></span>";
  }
  return out + "</div>";
}

/// What the page's script needs to tell values under the pointer.
std::string hover_data(const std::vector<series>& curves, const scale& x, number_style style) {
  std::string out = "{\"style\":\"";
  out += style == number_style::percent ? "percent" : style == number_style::seconds ? "seconds" : "plain";
  out += "\",\"x\":[" + fixed(x.low, 3) + "," + fixed(x.high, 3) + "],\"series\":[";
  for (std::size_t k = 0; k < curves.size(); ++k) {
    out += (k ? ",{\"name\":\"" : "{\"name\":\"") + curves[k].name + "\",\"c\":"
           + std::to_string(curves[k].colour) + ",\"p\":[";
    bool first = true;
    for (const auto& p : curves[k].points) {
      if (!std::isfinite(p.y))
        continue;
      char number[40];
      std::snprintf(number, sizeof number, "%.5g", p.y);
      out += (first ? "[" : ",[") + fixed(p.x, 2) + "," + number + "]";
      first = false;
    }
    out += "]}";
  }
  return escape(out + "]}");
}

std::string heading(const std::string& title, const std::string& note) {
  return "<figcaption><h3>" + escape(title) + "</h3>"
         + (note.empty() ? "" : "<p>" + escape(note) + "</p>") + "</figcaption>";
}

std::string svg_open(const std::string& title) {
  return "<svg viewBox=\"0 0 " + px(width) + " " + px(height) + "\" role=img aria-label=\""
         + escape(title) + "\">";
}

} // namespace

std::string draw(const chart& c) {
  std::vector<series> curves;
  extent xs;
  for (const auto& s : c.curves) {
    const bool any = std::any_of(s.points.begin(), s.points.end(),
                                 [](const point& p) { return std::isfinite(p.y); });
    if (!any)
      continue;
    curves.push_back(thinned(s));
    xs.add(s.points.front().x);
    xs.add(s.points.back().x);
  }
  if (curves.empty())
    return {};
  const scale x{xs.low, xs.high, left, width - right};
  const auto y = y_scale(c, curves);
  std::string out = "<figure data-chart=\"" + hover_data(curves, x, c.style) + "\">";
  out += heading(c.title, c.note) + legend(curves, c.style) + svg_open(c.title) + axes(x, y, c.style)
         + references(c, y);
  for (const auto& s : curves)
    out += curve(s, x, y);
  return out + "<path class=cross d=\"\"/></svg></figure>\n";
}

std::string draw(const bar_chart& c) {
  double highest = 0;
  for (const auto& b : c.bars)
    highest = std::max(highest, b.value);
  if (c.bars.empty() || highest <= 0)
    return {};
  const scale y{0, highest * 1.12, height - bottom - 14, top};
  std::string out = "<figure>" + heading(c.title, c.note) + svg_open(c.title);
  const double slot = (width - left - right) / double(c.bars.size());
  const double w = std::min(64.0, slot * 0.72);
  for (std::size_t i = 0; i < c.bars.size(); ++i) {
    const auto& b = c.bars[i];
    const double middle = left + slot * (double(i) + 0.5), base = y(0);
    const double h = b.value > 0 ? std::max(2.0, base - y(b.value)) : 0;
    const double r = std::min(4.0, h);
    if (h > 0)
      out += "<path class=\"bar" + std::string(b.forbidden ? " bad" : "") + "\" d=\"M"
             + px(middle - w / 2) + " " + px(base) + "v" + px(-(h - r)) + "q0 " + px(-r) + " "
             + px(r) + " " + px(-r) + "h" + px(w - 2 * r) + "q" + px(r) + " 0 " + px(r) + " " + px(r)
             + "v" + px(h - r) + "z\"><title>" + escape(b.label) + ": "
             + format(b.value, number_style::percent) + "</title></path>";
    out += "<text class=\"tick strong\" text-anchor=middle x=" + px(middle) + " y="
           + px(base - h - 6) + ">"
           + (b.value > 0 ? format(b.value, number_style::percent) : std::string("0")) + "</text>";
    out += "<text class=tick text-anchor=middle x=" + px(middle) + " y=" + px(base + 16) + ">"
           + escape(b.label) + "</text>";
  }
  out += "<path class=rule d=\"M" + px(left) + " " + px(y(0)) + "H" + px(width - right) + "\"/>";
  out += "<text class=tick text-anchor=middle x=" + px((left + width - right) / 2) + " y="
         + px(height - 5) + ">" + escape(c.axis) + "</text>";
  return out + "</svg></figure>\n";
}

std::string format(double x, number_style style) {
  if (!std::isfinite(x))
    return "–";
  if (style == number_style::seconds)
    return x == 0 ? "0" : short_duration(x);
  if (style == number_style::percent) {
    const double p = x * 100;
    const double size = std::abs(p);
    return fixed(p, size >= 10 || size == 0 ? (size == std::round(size) ? 0 : 1) : size >= 1 ? 1 : 2)
           + "%";
  }
  const double size = std::abs(x);
  if (size >= 1e9)
    return fixed(x / 1e9, 2) + "G";
  if (size >= 1e6)
    return fixed(x / 1e6, size >= 1e8 ? 0 : 2) + "M";
  if (size >= 1e4)
    return fixed(x / 1e3, size >= 1e5 ? 0 : 1) + "k";
  if (style == number_style::whole || size >= 100)
    return fixed(x, 0);
  if (size >= 1)
    return fixed(x, 2);
  if (size == 0 || size >= 1e-4)
    return fixed(x, size >= 0.01 || size == 0 ? 4 : 6);
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1e", x);
  return buffer;
}

std::string escape(std::string_view text) {
  std::string out;
  for (char c : text)
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  return out;
}

} // namespace millrace::report
