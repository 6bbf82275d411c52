// Batches as bytes, by the messages' own inspect(): the ranks run the same program.

#include "trainer/parallel.hpp"

#include "runtime/error.hpp"

#include <cstring>
#include <type_traits>

namespace millrace::trainer {

namespace {

template <class T>
constexpr bool is_plain = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class byte_writer {
public:
  using result_type = void;
  template <class... T>
  void operator()(const T&... x) {
    (put(x), ...);
  }
  std::string bytes;

private:
  template <class T>
  void put(const T& x) {
    if constexpr (is_plain<T>)
      bytes.append(reinterpret_cast<const char*>(&x), sizeof x);
    else
      inspect(*this, const_cast<T&>(x));
  }
  void put(const std::string& s) {
    put(s.size());
    bytes += s;
  }
  template <class T>
  void put(const std::vector<T>& v) {
    put(v.size());
    if constexpr (is_plain<T>)
      bytes.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(T));
    else
      for (const auto& x : v)
        put(x);
  }
};

class byte_reader {
public:
  using result_type = void;
  explicit byte_reader(const std::string& bytes) : left_(bytes) {}
  template <class... T>
  void operator()(T&... x) {
    (get(x), ...);
  }
  void expect_end() const { ensure(left_.empty(), "a batch of another rank has bytes left over"); }

private:
  void take(void* to, std::size_t n) {
    ensure(n <= left_.size(), "a batch of another rank is cut off");
    if (n > 0)
      std::memcpy(to, left_.data(), n);
    left_.remove_prefix(n);
  }
  std::size_t count(std::size_t least_bytes) {
    std::size_t n = 0;
    take(&n, sizeof n);
    ensure(n <= left_.size() / least_bytes, "a batch of another rank is cut off");
    return n;
  }
  template <class T>
  void get(T& x) {
    if constexpr (is_plain<T>)
      take(&x, sizeof x);
    else
      inspect(*this, x);
  }
  void get(std::string& s) {
    s.resize(count(1));
    take(s.data(), s.size());
  }
  template <class T>
  void get(std::vector<T>& v) {
    v.resize(count(is_plain<T> ? sizeof(T) : 1));
    if constexpr (is_plain<T>)
      take(v.data(), v.size() * sizeof(T));
    else
      for (auto& x : v)
        get(x);
  }
  std::string_view left_;
};

template <class T>
void write_all(byte_writer& w, std::span<const T> all) {
  w(all.size());
  for (const auto& x : all)
    w(x);
}

} // namespace

std::string to_bytes(std::span<const scored_group> groups, const old_logit_supply& supply) {
  byte_writer w;
  write_all(w, groups);
  w(supply);
  return std::move(w.bytes);
}

step_order step_from_bytes(const std::string& bytes) {
  byte_reader r(bytes);
  step_order order;
  r(order.groups, order.supply);
  r.expect_end();
  return order;
}

std::string to_bytes(std::span<const demonstration> batch) {
  byte_writer w;
  write_all(w, batch);
  return std::move(w.bytes);
}

std::vector<demonstration> demonstrations_from_bytes(const std::string& bytes) {
  byte_reader r(bytes);
  std::vector<demonstration> all;
  r(all);
  r.expect_end();
  return all;
}

} // namespace millrace::trainer
