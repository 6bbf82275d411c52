#include "trainer/checkpoint.hpp"

#include "runtime/error.hpp"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>

namespace fs = std::filesystem;
using nlohmann::json;

namespace millrace::trainer {

namespace {

constexpr auto manifest_name = "manifest.json";
constexpr auto state_folder = "state";
constexpr auto pointer_name = "latest";
constexpr auto writing_prefix = ".writing-";
constexpr auto removing_prefix = ".removing-";
constexpr auto aside_prefix = ".aside-";

[[noreturn]] void disk_error(const std::string& what, const fs::path& path) {
  throw user_error("checkpoint: cannot " + what + " " + path.string() + ": "
                   + std::strerror(errno));
}

void flush_to_disk(const fs::path& path) {
  auto fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    disk_error("open", path);
  auto rc = ::fsync(fd);
  auto error = errno;
  ::close(fd);
  errno = error;
  if (rc != 0)
    disk_error("flush", path);
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out)
    disk_error("write", path);
  flush_to_disk(path);
}

void rename_to(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    disk_error("rename " + from.string() + " to", to);
}

std::string as_hex(std::uint64_t h) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(h));
  return text;
}

std::string checksum(const std::string& text) {
  return as_hex(XXH3_64bits(text.data(), text.size()));
}

std::string checksum_of_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    disk_error("read", path);
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::vector<char> buffer(std::size_t{1} << 20);
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0)
    XXH3_64bits_update(state.get(), buffer.data(), static_cast<std::size_t>(in.gcount()));
  return as_hex(XXH3_64bits_digest(state.get()));
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    throw user_error("checkpoint: " + path.string() + " is missing or not readable");
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Flushes every file and folder below `folder`, and lists the files with size and checksum.
json list_and_flush(const fs::path& folder) {
  auto files = json::array();
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    flush_to_disk(path);
    if (fs::is_regular_file(path))
      files.push_back({{"path", fs::relative(path, folder).generic_string()},
                       {"bytes", fs::file_size(path)},
                       {"xxh3", checksum_of_file(path)}});
  }
  return files;
}

/// The manifest proves itself too: `checksum` is that of all the rest.
json proven_manifest(const fs::path& folder) {
  auto path = folder / manifest_name;
  auto text = read_text(path);
  auto manifest = json::parse(text, nullptr, false);
  if (!manifest.is_object() || !manifest.contains("checksum"))
    throw user_error("checkpoint: " + path.string() + " is torn");
  auto expected = manifest["checksum"];
  manifest.erase("checksum");
  if (expected != checksum(manifest.dump()))
    throw user_error("checkpoint: " + path.string() + " is corrupt: its checksum doesn't match");
  if (manifest["format"] != 1)
    throw user_error("checkpoint: " + path.string() + " has format " + manifest["format"].dump()
                     + ", this program reads format 1: use the program that wrote it");
  return manifest;
}

/// Sequence number in a folder's name, or −1 when it is no checkpoint's.
std::int64_t sequence_of(const fs::path& folder) {
  long long sequence = -1;
  int version = -1, end = 0;
  auto name = folder.filename().string();
  if (std::sscanf(name.c_str(), "%lld-v%d%n", &sequence, &version, &end) == 2
      && end == static_cast<int>(name.size()) && sequence >= 0)
    return sequence;
  return -1;
}

std::string folder_name(std::int64_t sequence, version at) {
  char text[48];
  std::snprintf(text, sizeof text, "%06lld-v%d", static_cast<long long>(sequence), at.value);
  return text;
}

std::optional<double> score_in(const json& manifest) {
  auto found = manifest.find("score");
  return found != manifest.end() && found->is_number() ? std::optional(found->get<double>())
                                                       : std::nullopt;
}

/// Of a folder whose files need not be valid.
std::optional<double> score_of(const fs::path& folder) {
  std::ifstream in(folder / manifest_name);
  auto manifest = json::parse(in, nullptr, false);
  return manifest.is_object() ? score_in(manifest) : std::nullopt;
}

} // namespace

checkpoint_store::checkpoint_store(fs::path root, std::int32_t keep_last, notice say,
                                   std::int32_t keep_best)
    : root_(std::move(root)), keep_last_(keep_last), keep_best_(keep_best), say_(std::move(say)) {
  ensure(keep_last_ >= 1, "checkpoint_store: keep_last is " + std::to_string(keep_last_));
}

std::vector<fs::path> checkpoint_store::list() const {
  std::vector<fs::path> folders;
  if (!fs::is_directory(root_))
    return folders;
  for (const auto& entry : fs::directory_iterator(root_))
    if (entry.is_directory() && sequence_of(entry.path()) >= 0)
      folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end(),
            [](const auto& a, const auto& b) { return sequence_of(a) > sequence_of(b); });
  return folders;
}

fs::path checkpoint_store::make_aside() {
  try {
    fs::create_directories(root_);
    if (asides_ == 0)
      for (const auto& entry : fs::directory_iterator(root_))
        if (entry.path().filename().string().starts_with(aside_prefix))
          fs::remove_all(entry.path());
    auto folder = root_ / (aside_prefix + std::to_string(++asides_));
    fs::create_directory(folder);
    return fs::absolute(folder);
  } catch (const fs::filesystem_error& e) {
    throw user_error("checkpoint: cannot make a folder in " + root_.string() + ": "
                     + e.code().message());
  }
}

checkpoint checkpoint_store::save(version at, const std::function<void(const fs::path&)>& write,
                                  const std::map<std::string, std::string>& state,
                                  std::optional<double> score) {
  try {
    fs::create_directories(root_);
    remove_leftovers();
    auto folders = list();
    auto sequence = folders.empty() ? 1 : sequence_of(folders.front()) + 1;
    auto name = folder_name(sequence, at);
    auto aside = root_ / (writing_prefix + name);
    fs::create_directory(aside);
    write(aside);
    fs::create_directory(aside / state_folder);
    for (const auto& [part, bytes] : state)
      write_text(aside / state_folder / part, bytes);
    json manifest{{"format", 1}, {"version", at.value}, {"sequence", sequence},
                  {"files", list_and_flush(aside)}};
    if (score)
      manifest["score"] = *score;
    manifest["checksum"] = checksum(manifest.dump());
    write_text(aside / manifest_name, manifest.dump(1));
    flush_to_disk(aside);
    rename_to(aside, root_ / name);
    flush_to_disk(root_);
    auto pointer_aside = root_ / (std::string(writing_prefix) + pointer_name);
    write_text(pointer_aside, name + "\n");
    rename_to(pointer_aside, root_ / pointer_name);
    flush_to_disk(root_);
    remove_old();
    return {root_ / name, at, sequence, score, state};
  } catch (const fs::filesystem_error& e) {
    throw user_error("checkpoint of " + to_string(at) + " could not be written to "
                     + root_.string() + ": " + e.code().message()
                     + ". Earlier checkpoints are untouched");
  }
}

checkpoint checkpoint_store::open(const fs::path& folder, const std::string& part) {
  try {
    auto manifest = proven_manifest(folder);
    for (const auto& file : manifest["files"]) {
      auto name = file["path"].get<std::string>();
      if (!part.empty() && !name.starts_with(part + "/"))
        continue;
      auto path = folder / name;
      if (!fs::is_regular_file(path))
        throw user_error("checkpoint: " + path.string() + " is missing");
      if (fs::file_size(path) != file["bytes"].get<std::uintmax_t>())
        throw user_error("checkpoint: " + path.string() + " has "
                         + std::to_string(fs::file_size(path)) + " bytes instead of "
                         + file["bytes"].dump());
      if (checksum_of_file(path) != file["xxh3"].get<std::string>())
        throw user_error("checkpoint: " + path.string()
                         + " is corrupt: its checksum doesn't match");
    }
    checkpoint result{folder, {manifest["version"].get<std::int32_t>()},
                      manifest["sequence"].get<std::int64_t>(), score_in(manifest), {}};
    for (const auto& entry : fs::directory_iterator(folder / state_folder))
      result.state[entry.path().filename().string()] = read_text(entry.path());
    return result;
  } catch (const json::exception& e) {
    throw user_error("checkpoint: " + folder.string() + " can't be understood: " + e.what());
  } catch (const fs::filesystem_error& e) {
    throw user_error("checkpoint: " + folder.string() + ": " + e.code().message());
  }
}

std::optional<checkpoint> checkpoint_store::newest(const std::string& part) const {
  auto candidates = list();
  if (candidates.empty())
    return std::nullopt;
  std::ifstream pointer(root_ / pointer_name);
  std::string name;
  pointer >> name;
  auto named = std::find(candidates.begin(), candidates.end(), root_ / name);
  if (named != candidates.end())
    std::rotate(candidates.begin(), named, named + 1);
  else
    say_("checkpoint: " + (root_ / pointer_name).string()
         + (name.empty() ? " is missing or empty" : " names " + name + ", which is not there")
         + ": taking the newest valid one");
  std::string problems;
  for (const auto& folder : candidates) {
    try {
      auto found = open(folder, part);
      if (!problems.empty())
        say_("checkpoint: using " + folder.string() + " instead");
      return found;
    } catch (const user_error& e) {
      say_(e.what());
      problems += std::string("\n  ") + e.what();
    }
  }
  throw user_error("none of the checkpoints in " + root_.string() + " is valid:" + problems
                   + "\nTo start from scratch, use another run directory or move them away");
}

void checkpoint_store::remove_leftovers() const {
  for (const auto& entry : fs::directory_iterator(root_)) {
    auto name = entry.path().filename().string();
    if (name.starts_with(writing_prefix) || name.starts_with(removing_prefix))
      fs::remove_all(entry.path());
  }
}

void checkpoint_store::remove_old() const {
  auto folders = list();
  auto old = static_cast<std::ptrdiff_t>(std::min<std::size_t>(keep_last_, folders.size()));
  if (keep_best_ > 0) {
    std::vector<std::pair<double, fs::path>> scored;
    for (const auto& f : folders)
      if (auto score = score_of(f))
        scored.emplace_back(*score, f);
    // Of equals the newer one, as list() has them.
    std::stable_sort(scored.begin(), scored.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    scored.resize(std::min<std::size_t>(scored.size(), keep_best_));
    auto best = [&](const fs::path& f) {
      return std::any_of(scored.begin(), scored.end(), [&](const auto& s) { return s.second == f; });
    };
    folders.erase(std::remove_if(folders.begin() + old, folders.end(), best), folders.end());
  }
  for (auto i = static_cast<std::size_t>(old); i < folders.size(); ++i) {
    // Renamed first: a folder that is half removed must not look like a corrupt checkpoint.
    auto condemned = root_ / (removing_prefix + folders[i].filename().string());
    rename_to(folders[i], condemned);
    fs::remove_all(condemned);
  }
}

} // namespace millrace::trainer
