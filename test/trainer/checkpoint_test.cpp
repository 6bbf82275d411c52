#include "trainer/checkpoint.hpp"

#include "runtime/error.hpp"
#include "test/trainer/scratch_folder.hpp"
#include "trainer/checkpoint_writer.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <chrono>
#include <csignal>
#include <fstream>
#include <random>

using namespace millrace;
using namespace millrace::trainer;
using millrace::toy::scratch_folder;
namespace fs = std::filesystem;

namespace {

void put(const fs::path& file, std::size_t bytes, unsigned seed) {
  std::mt19937 rng{seed};
  std::string text(bytes, '\0');
  for (auto& c : text)
    c = static_cast<char>(rng());
  std::ofstream(file, std::ios::binary) << text;
}

checkpoint save(checkpoint_store& store, std::int32_t v) {
  return store.save(
    {v},
    [v](const fs::path& folder) {
      fs::create_directory(folder / "model");
      put(folder / "model" / "weights", 5000, static_cast<unsigned>(v));
      put(folder / "optimizer", 3000, static_cast<unsigned>(v) + 1);
    },
    {{"cursor.json", "{\"at\": " + std::to_string(v) + "}"}, {"ledger", std::string("\0\xff", 2)}});
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& e : fs::recursive_directory_iterator(folder))
    if (e.is_regular_file())
      files.push_back(e.path());
  std::sort(files.begin(), files.end());
  return files;
}

struct heard {
  std::vector<std::string> lines;
  checkpoint_store::notice notice() {
    return [this](const std::string& s) { lines.push_back(s); };
  }
};

} // namespace

TEST_CASE("a checkpoint is found again with its state, and only the last n are kept") {
  scratch_folder dir;
  heard log;
  checkpoint_store store(dir.path / "not" / "there yet", 2, log.notice());
  REQUIRE(!store.newest());
  for (std::int32_t v : {0, 5, 5, 10})
    save(store, v);
  REQUIRE(store.list().size() == 2);
  auto found = store.newest();
  REQUIRE(found);
  REQUIRE(found->at == version{10});
  REQUIRE(found->sequence == 4);
  REQUIRE(found->state.at("cursor.json") == "{\"at\": 10}");
  REQUIRE(found->state.at("ledger") == std::string("\0\xff", 2));
  REQUIRE(fs::file_size(found->folder / "model" / "weights") == 5000);
  REQUIRE(log.lines.empty());
  for (const auto& e : fs::directory_iterator(dir.path / "not" / "there yet"))
    REQUIRE(e.path().filename().string()[0] != '.'); // nothing is left aside
}

TEST_CASE("latest can be pointed at an older checkpoint; without it the newest is taken") {
  scratch_folder dir;
  heard log;
  checkpoint_store store(dir.path, 5, log.notice());
  for (std::int32_t v : {1, 2, 3})
    save(store, v);
  std::ofstream(dir.path / "latest") << "000002-v2\n";
  REQUIRE(store.newest()->at == version{2});
  REQUIRE(log.lines.empty());
  REQUIRE(save(store, 3).sequence == 4);
  REQUIRE(store.newest()->sequence == 4);

  for (const auto* text : {"", "000009-v9", "../elsewhere", "."}) {
    log.lines.clear();
    std::ofstream(dir.path / "latest") << text;
    REQUIRE(store.newest()->sequence == 4);
    REQUIRE(log.lines.size() == 1);
  }
  fs::remove(dir.path / "latest");
  REQUIRE(store.newest()->sequence == 4);
}

TEST_CASE("truncated, damaged or missing files: the previous checkpoint is used, said aloud") {
  for (unsigned seed = 0; seed < 150; ++seed) {
    INFO("seed " << seed);
    std::mt19937 rng{seed};
    scratch_folder dir;
    heard log;
    checkpoint_store store(dir.path, 3, log.notice());
    save(store, 1);
    auto newest = save(store, 2).folder;
    auto files = files_in(newest);
    auto victim = files[rng() % files.size()];
    auto size = fs::file_size(victim);
    INFO(victim);
    switch (rng() % 3) {
      case 0: fs::resize_file(victim, rng() % size); break;
      case 1: fs::remove(victim); break;
      default: {
        std::fstream f(victim, std::ios::in | std::ios::out | std::ios::binary);
        auto at = static_cast<std::streamoff>(rng() % size);
        f.seekg(at);
        auto c = static_cast<char>(f.get());
        f.seekp(at);
        f.put(static_cast<char>(c ^ (1 << rng() % 7)));
      }
    }
    auto found = store.newest();
    REQUIRE(found);
    // White space of the manifest isn't content: damage there may rightly go unnoticed.
    if (victim.filename() == "manifest.json" && found->at == version{2})
      continue;
    REQUIRE(found->at == version{1});
    REQUIRE(log.lines.size() == 2);
    REQUIRE_THAT(log.lines[0], Catch::Contains("000002-v2"));
    REQUIRE_THAT(log.lines[1], Catch::Contains("using") && Catch::Contains("000001-v1"));
  }
}

TEST_CASE("the best are kept beside the last") {
  scratch_folder dir;
  checkpoint_store store(dir.path, 2, [](const std::string&) {}, 2);
  auto nothing = [](const fs::path&) {};
  const std::vector<std::optional<double>> scores{0.5, 0.9, {}, 0.1, 0.9, 0.2, 0.3};
  for (std::size_t i = 0; i < scores.size(); ++i)
    store.save({static_cast<std::int32_t>(i)}, nothing, {}, scores[i]);
  std::vector<std::int32_t> kept;
  for (const auto& f : store.list())
    kept.push_back(checkpoint_store::open(f).at.value);
  REQUIRE(kept == std::vector<std::int32_t>{6, 5, 4, 1});
  REQUIRE(store.newest()->score == 0.3);
}

TEST_CASE("checkpoints written aside: in order, and what fails is told at the next call") {
  scratch_folder dir;
  checkpoint_store store(dir.path, 3, [](const std::string&) {});
  {
    checkpoint_writer writer(store);
    writer.wait();
    for (std::int32_t v = 0; v < 5; ++v)
      writer.submit({{v}, [v](const fs::path& f) { put(f / "weights", 4000, unsigned(v)); }, {}, {}});
    writer.wait();
    REQUIRE(store.newest()->at == version{4});
    writer.submit({{5}, [](const fs::path&) { throw user_error("no space left"); }, {}, {}});
    REQUIRE_THROWS_AS(writer.wait(), user_error);
    writer.submit({{6}, [](const fs::path& f) { put(f / "weights", 4000, 6); }, {}, {}});
  } // ends the write under way
  REQUIRE(store.newest()->at == version{6});
  REQUIRE(store.list().size() == 3);
}

TEST_CASE("when no checkpoint is valid the user decides") {
  scratch_folder dir;
  checkpoint_store store(dir.path, 3, [](const std::string&) {});
  auto c = save(store, 1);
  fs::resize_file(c.folder / "optimizer", 10);
  REQUIRE_THROWS_WITH(store.newest(), Catch::Contains("optimizer has 10 bytes instead of 3000")
                                        && Catch::Contains("start from scratch"));
}

TEST_CASE("a writer that fails leaves the earlier checkpoint as it was") {
  scratch_folder dir;
  heard log;
  checkpoint_store store(dir.path, 1, log.notice());
  save(store, 1);
  auto failing = [](const fs::path& folder) {
    put(folder / "half", 100, 0);
    throw user_error("no space left");
  };
  REQUIRE_THROWS_AS(store.save({2}, failing, {}), user_error);
  REQUIRE(store.newest()->at == version{1});
  save(store, 3);
  REQUIRE(store.newest()->at == version{3});
  REQUIRE(store.list().size() == 1);
}

TEST_CASE("killed at any moment of a save, the next start finds a whole checkpoint") {
  auto aside = GENERATE(false, true); // written by a thread while others go on
  scratch_folder dir;
  checkpoint_store store(dir.path, 2, [](const std::string&) {});
  auto started = std::chrono::steady_clock::now();
  save(store, 0);
  auto one_save = std::chrono::duration_cast<std::chrono::microseconds>(
                    std::chrono::steady_clock::now() - started).count();
  std::mt19937 rng{7};
  std::int64_t last = 0;
  for (int round = 0; round < 100; ++round) {
    INFO("round " << round);
    auto child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      checkpoint_writer writer(store);
      for (std::int32_t v = 1;; ++v)
        if (aside)
          writer.submit({{v}, [v](const fs::path& f) { put(f / "weights", 5000, unsigned(v)); },
                         {{"cursor.json", "{}"}}, double(v)});
        else
          save(store, v);
    }
    ::usleep(static_cast<useconds_t>(rng() % (4 * one_save + 1000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    auto found = store.newest();
    REQUIRE(found);
    REQUIRE(found->sequence >= last);
    last = found->sequence;
  }
  REQUIRE(last > 1);
}
