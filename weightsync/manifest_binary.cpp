// The manifest's compact form: the fields in the order of inspect(), little-endian; strings and
// vectors after their 64-bit length; before it a mark, after it a checksum.

#include "runtime/error.hpp"
#include "weightsync/checksum.hpp"
#include "weightsync/manifest.hpp"

#include <bit>
#include <cstring>
#include <type_traits>

namespace millrace::weightsync {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t mark = 0x0001'5453'4E4D'524D; // "MRMNST", format 1

template <class T>
constexpr bool plain = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class binary_writer {
public:
  using result_type = void;

  template <class... Ts>
  void operator()(Ts&... xs) {
    (put(xs), ...);
  }

  std::vector<std::byte> bytes;

  template <class T>
  void put(T& x) {
    if constexpr (plain<T>)
      raw(&x, sizeof(x));
    else
      inspect(*this, x);
  }

private:
  void raw(const void* from, std::size_t n) {
    auto at = bytes.size();
    bytes.resize(at + n);
    std::memcpy(bytes.data() + at, from, n);
  }

  void put(std::string& x) {
    std::uint64_t n = x.size();
    put(n);
    if (n > 0)
      raw(x.data(), n);
  }

  template <class T>
  void put(std::vector<T>& xs) {
    std::uint64_t n = xs.size();
    put(n);
    for (auto& x : xs)
      put(x);
  }
};

class binary_reader {
public:
  using result_type = void;

  explicit binary_reader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class... Ts>
  void operator()(Ts&... xs) {
    (get(xs), ...);
  }

  template <class T>
  void get(T& x) {
    if constexpr (plain<T>)
      raw(&x, sizeof(x));
    else
      inspect(*this, x);
  }

  [[nodiscard]] bool done() const { return left_.empty(); }

private:
  void need(std::uint64_t n) const {
    if (n > left_.size())
      throw user_error("weight manifest: it is cut off: " + std::to_string(n)
                       + " more bytes expected, " + std::to_string(left_.size()) + " found");
  }

  void raw(void* to, std::size_t n) {
    need(n);
    std::memcpy(to, left_.data(), n);
    left_ = left_.subspan(n);
  }

  std::uint64_t length() {
    std::uint64_t n = 0;
    get(n);
    need(n); // an element takes a byte at least
    return n;
  }

  void get(std::string& x) {
    x.resize(length());
    if (!x.empty())
      raw(x.data(), x.size());
  }

  template <class T>
  void get(std::vector<T>& xs) {
    auto n = length();
    xs.clear();
    for (std::uint64_t i = 0; i < n; ++i)
      get(xs.emplace_back());
  }

  std::span<const std::byte> left_;
};

} // namespace

std::vector<std::byte> to_binary(const manifest& m) {
  binary_writer out;
  auto head = mark;
  out.put(head);
  auto copy = m; // inspect() takes what it could also fill
  out.put(copy);
  auto sum = checksum(out.bytes);
  out.put(sum);
  return std::move(out.bytes);
}

manifest manifest_from_binary(std::span<const std::byte> bytes) {
  if (bytes.size() < 2 * sizeof(std::uint64_t))
    throw user_error("weight manifest: " + std::to_string(bytes.size()) + " bytes are too few");
  auto body = bytes.first(bytes.size() - sizeof(std::uint64_t));
  std::uint64_t sum = 0;
  std::memcpy(&sum, bytes.data() + body.size(), sizeof(sum));
  if (sum != checksum(body))
    throw user_error("weight manifest: its checksum is wrong: it was damaged on the way");
  binary_reader in(body);
  std::uint64_t head = 0;
  in.get(head);
  if (head != mark)
    throw user_error("weight manifest: not a manifest, or one of another format version");
  manifest m;
  in.get(m);
  if (!in.done())
    throw user_error("weight manifest: bytes are left over after it");
  validate(m);
  return m;
}

} // namespace millrace::weightsync
