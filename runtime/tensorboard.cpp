#include "runtime/tensorboard.hpp"

#include "runtime/error.hpp"
#include "runtime/log.hpp"

#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace millrace {

namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    auto c = i;
    for (int k = 0; k < 8; ++k)
      c = (c & 1U) != 0 ? 0x82F63B78U ^ (c >> 1U) : c >> 1U;
    table[i] = c;
  }
  return table;
}

/// Little-endian, whatever the machine is.
template <class T>
std::string little(T value) {
  std::string out;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out += static_cast<char>((value >> (8 * i)) & 0xFFU);
  return out;
}

// -- Protocol Buffers ------------------------------------------------------------------------------

std::string varint(std::uint64_t x) {
  std::string out;
  for (; x >= 0x80; x >>= 7U)
    out += static_cast<char>((x & 0x7FU) | 0x80U);
  return out + static_cast<char>(x);
}

enum wire_type : std::uint8_t { as_varint = 0, as_64_bits = 1, as_bytes = 2, as_32_bits = 5 };

std::string tag(int field, wire_type type) {
  return varint(static_cast<std::uint64_t>(field) << 3U | type);
}
std::string whole(int field, std::int64_t x) {
  return tag(field, as_varint) + varint(static_cast<std::uint64_t>(x));
}
std::string number(int field, double x) {
  return tag(field, as_64_bits) + little(std::bit_cast<std::uint64_t>(x));
}
std::string single(int field, float x) {
  return tag(field, as_32_bits) + little(std::bit_cast<std::uint32_t>(x));
}
std::string bytes(int field, std::string_view x) {
  return tag(field, as_bytes) + varint(x.size()) + std::string(x);
}
std::string packed(int field, std::span<const double> xs) {
  std::string all;
  for (auto x : xs)
    all += little(std::bit_cast<std::uint64_t>(x));
  return bytes(field, all);
}

std::string event(double wall, std::int64_t step, std::string_view what) {
  return number(1, wall) + whole(2, step) + std::string(what);
}

} // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto table = crc_table();
  std::uint32_t c = 0xFFFFFFFFU;
  for (unsigned char b : bytes)
    c = table[(c ^ b) & 0xFFU] ^ (c >> 8U);
  return ~c;
}

std::string tfrecord(std::string_view bytes) {
  const auto masked = [](std::string_view x) {
    const auto c = crc32c(x);
    return little(((c >> 15U) | (c << 17U)) + 0xA282EAD8U);
  };
  const auto length = little(static_cast<std::uint64_t>(bytes.size()));
  return length + masked(length) + std::string(bytes) + masked(bytes);
}

tensorboard_writer::tensorboard_writer(const std::filesystem::path& folder, double wall,
                                       std::int64_t from) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  char host[256] = "local";
  ::gethostname(host, sizeof host - 1);
  const auto stem = "events.out.tfevents." + std::to_string(static_cast<std::int64_t>(wall)) + "."
                    + host + "." + std::to_string(::getpid()) + ".";
  for (int i = 0; descriptor_ < 0; ++i) {
    file_ = folder / (stem + std::to_string(i));
    descriptor_ = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor_ < 0 && errno != EEXIST)
      throw user_error("log.tensorboard: can't write " + file_.string() + ": "
                       + std::strerror(errno));
  }
  write(event(wall, 0, bytes(3, "brain.Event:2")));
  constexpr int session_log = 7, started = 1;
  if (from > 0)
    write(event(wall, from + 1, bytes(session_log, whole(1, started))));
}

tensorboard_writer::~tensorboard_writer() {
  ::close(descriptor_);
}

void tensorboard_writer::scalars(std::int64_t step, double wall,
                                 const std::map<std::string, double>& values) {
  std::string summary;
  for (const auto& [name, value] : values)
    summary += bytes(1, bytes(1, name) + single(2, static_cast<float>(value)));
  write(event(wall, step, bytes(5, summary)));
}

void tensorboard_writer::histogram(std::int64_t step, double wall, std::string_view name,
                                   std::span<const std::int64_t> counts) {
  double n = 0, sum = 0, squares = 0, low = 0, high = 0;
  std::vector<double> limits, buckets;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto x = static_cast<double>(i), count = static_cast<double>(counts[i]);
    if (count > 0 && n == 0)
      low = x;
    if (count > 0)
      high = x;
    n += count;
    sum += count * x;
    squares += count * x * x;
    limits.push_back(x + 0.5);
    buckets.push_back(count);
  }
  const auto histogram = number(1, low) + number(2, high) + number(3, n) + number(4, sum)
                         + number(5, squares) + packed(6, limits) + packed(7, buckets);
  write(event(wall, step, bytes(5, bytes(1, bytes(1, name) + bytes(5, histogram)))));
}

void tensorboard_writer::write(std::string_view event) {
  const auto record = tfrecord(event);
  if (::write(descriptor_, record.data(), record.size()) != static_cast<ssize_t>(record.size()))
    log::warning("tensorboard", "can't write to " + file_.string() + ": " + std::strerror(errno));
}

} // namespace millrace
