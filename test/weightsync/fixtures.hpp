#pragma once

#include "runtime/tensor_view.hpp"
#include "weightsync/layout.hpp"

#include <cstdint>
#include <deque>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace millrace::weightsync {

/// Tensors with memory of their own, for tests.
class tensor_set {
public:
  void add(std::string name, dtype type, tensor_shape shape) {
    tensor_view v{std::move(name), type, std::move(shape)};
    auto& bytes = memory_.emplace_back(v.bytes());
    v.data = bytes.data();
    views_.push_back(std::move(v));
  }

  static tensor_set like(const layout& l, dtype type) {
    tensor_set result;
    for (const auto& t : local_tensors(l))
      result.add(t.name, type, t.shape);
    return result;
  }

  /// Values that are told apart bit by bit: of a normal distribution.
  void randomise(std::mt19937_64& random) {
    std::normal_distribution<float> normal;
    for (auto& v : views_)
      if (v.type == dtype::f32)
        for (std::int64_t i = 0; i < v.elements(); ++i)
          reinterpret_cast<float*>(v.data)[i] = normal(random);
      else
        for (std::size_t i = 0; i < v.bytes(); ++i)
          v.data[i] = static_cast<std::byte>(random());
  }

  [[nodiscard]] const std::vector<tensor_view>& views() const { return views_; }

  [[nodiscard]] const tensor_view& operator[](const std::string& name) const {
    for (const auto& v : views_)
      if (v.name == name)
        return v;
    throw std::out_of_range(name);
  }

  [[nodiscard]] const float* floats(const std::string& name) const {
    return reinterpret_cast<const float*>((*this)[name].data);
  }

  friend bool same_bytes(const tensor_set& a, const tensor_set& b) {
    return a.memory_ == b.memory_;
  }

private:
  std::deque<std::vector<std::byte>> memory_;
  std::vector<tensor_view> views_;
};

/// The global numbers of a slice's elements, by the definition and one by one.
inline std::vector<std::int64_t> elements(const tensor_shape& shape, const slice& s) {
  auto n = elements_of(shape);
  std::vector<std::int64_t> all;
  for (std::int64_t g = 0; g < n; ++g) {
    if (s.axis >= 0) {
      std::int64_t inner = 1;
      for (auto i = static_cast<std::size_t>(s.axis) + 1; i < shape.size(); ++i)
        inner *= shape[i];
      auto index = g / inner % shape[static_cast<std::size_t>(s.axis)];
      if (index < s.begin || index >= s.end)
        continue;
    }
    all.push_back(g);
  }
  return {all.begin() + s.first, all.begin() + s.first + s.count};
}

} // namespace millrace::weightsync
