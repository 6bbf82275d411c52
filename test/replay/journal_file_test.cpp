#include "replay/durable_buffer.hpp"

#include "runtime/error.hpp"
#include "test/replay/sample_groups.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>

using namespace millrace;

namespace {

const buffer_options options{.capacity = 400, .batch_size = 4, .group_size = 2, .eta = 2};

struct folder {
  folder()
    : path(std::filesystem::temp_directory_path()
           / ("millrace-journal-" + std::to_string(getpid()))) {
    std::filesystem::remove_all(path);
    std::filesystem::create_directory(path);
  }
  ~folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

} // namespace

TEST_CASE("journal file: comes back, torn and compacted, from the disk") {
  folder f;
  const auto path = f.path / "replay.journal";
  auto open = [&] {
    return durable_buffer(options, open_journal_file(path), {.compact_above = 4000});
  };
  {
    auto b = open();
    for (std::int64_t g = 0; g < 40; ++g)
      b.insert(uniform_group(g, 2, 0));
    REQUIRE(b.compactions() > 0);
    b.hand_out({0});
    b.sync();
  }
  std::ofstream(path, std::ios::app | std::ios::binary) << "torn";
  auto b = open();
  REQUIRE(b.recovery().cut_bytes == 4);
  REQUIRE(b.state().depth() == 76);
  REQUIRE(b.state().in_training() == 4);
  REQUIRE(std::filesystem::file_size(path) == b.journal_bytes());
  REQUIRE_FALSE(std::filesystem::exists(path.string() + ".partial"));
}

TEST_CASE("journal file: one run at a time, also after compaction") {
  folder f;
  const auto path = f.path / "replay.journal";
  durable_buffer b(options, open_journal_file(path), {.compact_above = 100});
  REQUIRE_THROWS_AS(open_journal_file(path), user_error);
  for (std::int64_t g = 0; g < 10; ++g)
    b.insert(uniform_group(g, 2, 0));
  REQUIRE(b.compactions() > 0);
  REQUIRE_THROWS_AS(open_journal_file(path), user_error);
}

TEST_CASE("journal file: a path that can't be is told") {
  folder f;
  REQUIRE_THROWS_AS(open_journal_file(f.path), user_error);
  REQUIRE_THROWS_AS(open_journal_file(f.path / "missing" / "x"), user_error);
}
