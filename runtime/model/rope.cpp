#include "runtime/model/model_config.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace::model {
namespace {

/// Long wavelengths are stretched by the factor, short ones kept, those between blended.
float llama3_frequency(float f, const rope_scaling& s) {
  const double wavelength = 2 * std::numbers::pi / f;
  const auto length = static_cast<double>(s.original_max_positions);
  if (wavelength > length / s.low_freq_factor)
    return f / static_cast<float>(s.factor);
  if (wavelength < length / s.high_freq_factor)
    return f;
  const double smooth = (length / wavelength - s.low_freq_factor)
                        / (s.high_freq_factor - s.low_freq_factor);
  return static_cast<float>((1 - smooth) * f / s.factor + smooth * f);
}

/// Yarn's blend of dimensions that are stretched with those that are not (the paper's section 3.2):
/// the share, by dimension, of the stretched one.
class yarn_ramp {
public:
  explicit yarn_ramp(const model_config& c) {
    const auto& s = c.scaling;
    const auto dim = static_cast<double>(c.head_dim);
    // The dimension that turns so many times over the original context.
    const auto dimension = [&](double turns) {
      return dim * std::log(static_cast<double>(s.original_max_positions)
                            / (turns * 2 * std::numbers::pi)) / (2 * std::log(c.rope_theta));
    };
    auto low = dimension(s.beta_fast), high = dimension(s.beta_slow);
    if (s.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low_ = std::max(low, 0.0);
    high_ = std::min(high, dim - 1);
    if (low_ == high_)
      high_ += 0.001;
  }
  [[nodiscard]] float at(std::int64_t i) const {
    return std::clamp((static_cast<float>(i) - static_cast<float>(low_))
                        / static_cast<float>(high_ - low_), 0.0F, 1.0F);
  }

private:
  double low_, high_;
};

} // namespace

std::vector<float> rope_inverse_frequencies(const model_config& c) {
  const auto half = c.head_dim / 2;
  std::vector<float> frequencies(static_cast<std::size_t>(half));
  const auto& s = c.scaling;
  const yarn_ramp ramp(c);
  for (std::int64_t i = 0; i < half; ++i) {
    const auto exponent = static_cast<float>(2 * i) / static_cast<float>(c.head_dim);
    const auto power = std::pow(static_cast<float>(c.rope_theta), exponent);
    auto f = 1.0F / power;
    if (s.kind == rope_kind::linear)
      f /= static_cast<float>(s.factor);
    if (s.kind == rope_kind::llama3)
      f = llama3_frequency(f, s);
    if (s.kind == rope_kind::yarn) {
      const auto kept = 1.0F - ramp.at(i);
      f = 1.0F / (static_cast<float>(s.factor) * power) * (1.0F - kept) + f * kept;
    }
    frequencies[static_cast<std::size_t>(i)] = f;
  }
  return frequencies;
}

rope_tables make_rope_tables(const model_config& c, std::int64_t positions) {
  const auto frequencies = rope_inverse_frequencies(c);
  const auto factor = static_cast<float>(c.scaling.attention_factor);
  rope_tables tables;
  tables.cos.reserve(static_cast<std::size_t>(positions) * frequencies.size());
  tables.sin.reserve(static_cast<std::size_t>(positions) * frequencies.size());
  for (std::int64_t p = 0; p < positions; ++p)
    for (const float f : frequencies) {
      const auto angle = static_cast<double>(static_cast<float>(p) * f);
      tables.cos.push_back(static_cast<float>(std::cos(angle)) * factor);
      tables.sin.push_back(static_cast<float>(std::sin(angle)) * factor);
    }
  return tables;
}

} // namespace millrace::model
