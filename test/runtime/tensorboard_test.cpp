#include "runtime/error.hpp"
#include "runtime/scratch_folder.hpp"
#include "runtime/tensorboard.hpp"

#include <catch2/catch.hpp>

#include <cstdint>
#include <fstream>
#include <iterator>

using namespace millrace;
namespace fs = std::filesystem;

namespace {

std::string content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Splits a file into its records, checking both sums of each.
std::vector<std::string> records(std::string_view file) {
  std::vector<std::string> out;
  while (!file.empty()) {
    REQUIRE(file.size() >= 16);
    std::uint64_t length = 0;
    for (int i = 0; i < 8; ++i)
      length |= std::uint64_t{static_cast<unsigned char>(file[static_cast<std::size_t>(i)])} << (8 * i);
    REQUIRE(file.size() >= 16 + length);
    out.emplace_back(file.substr(12, length));
    REQUIRE(tfrecord(out.back()) == file.substr(0, 16 + length));
    file.remove_prefix(16 + length);
  }
  return out;
}

} // namespace

TEST_CASE("tensorboard: the checksum's known values") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xE3069283U);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAU); // RFC 3720, B.4
  CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43U);
}

TEST_CASE("tensorboard: events byte for byte") {
  scratch_folder scratch("millrace-test");
  const auto& folder = scratch.path();
  fs::path file;
  {
    tensorboard_writer w{folder / "tensorboard", 1.5};
    w.scalars(300, 2, {{"a/b", 0.5}});
    w.histogram(1, 2, "h", std::vector<std::int64_t>{0, 2});
    file = w.file();
  }
  auto all = records(content(file));
  REQUIRE(all.size() == 3);
  using namespace std::string_literals;
  CHECK(all[0] == "\x09\0\0\0\0\0\0\xF8\x3F\x10\0\x1A\x0D" "brain.Event:2"s);
  CHECK(all[1]
        == "\x09\0\0\0\0\0\0\0\x40\x10\xAC\x02\x2A\x0C\x0A\x0A\x0A\x03" "a/b\x15\0\0\0\x3F"s);
  CHECK(all[2].find("\x12\x10"s) == std::string::npos);
  CHECK(all[2].size() == 9 + 2 + 2 + 2 + 3 + 2 + 45 + 18 + 18);
}

TEST_CASE("tensorboard: two writers of one folder don't share a file; a resumed one says from where") {
  scratch_folder scratch("millrace-test");
  const auto& folder = scratch.path();
  tensorboard_writer a{folder, 1}, b{folder, 1, 40};
  CHECK(a.file() != b.file());
  CHECK(records(content(a.file())).size() == 1);
  auto resumed = records(content(b.file()));
  REQUIRE(resumed.size() == 2);
  CHECK(resumed[1].substr(9) == "\x10\x29\x3A\x02\x08\x01");
  REQUIRE_THROWS_AS(tensorboard_writer("/proc/no", 1), user_error);
}
