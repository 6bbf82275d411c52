// The rules on who may include whom, read from the sources.

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

struct include_line {
  std::string file; ///< relative to the source folder
  std::string target;
  bool quoted = false;
};

std::vector<include_line> includes_below(const std::string& folder) {
  const fs::path root = MILLRACE_SOURCE_DIR;
  static const std::regex pattern(R"re(\s*#\s*include\s*([<"])([^>"]+)[>"].*)re");
  std::vector<include_line> out;
  for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
    const auto type = entry.path().extension();
    if (type != ".hpp" && type != ".cpp" && type != ".cu" && type != ".cuh")
      continue;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);)
      if (std::smatch m; std::regex_match(line, m, pattern))
        out.push_back({fs::relative(entry.path(), root).string(), m[2], m[1] == "\""});
  }
  return out;
}

bool is_torch(const std::string& target) {
  return target.starts_with("torch/") || target.starts_with("ATen/") || target.starts_with("c10/");
}

const std::set<std::string> folders{"runtime", "policy_loss", "rollout", "replay",
                                    "trainer", "weightsync",  "actors"};

} // namespace

TEST_CASE("dependencies between folders point one way") {
  const std::map<std::string, std::set<std::string>> allowed{
    {"runtime", {}},
    {"policy_loss", {"runtime"}},
    {"rollout", {"runtime"}},
    {"replay", {"runtime"}},
    {"trainer", {"runtime", "policy_loss"}},
    {"weightsync", {"runtime"}}};
  std::size_t seen = 0;
  for (const auto& [folder, others] : allowed)
    for (const auto& i : includes_below(folder)) {
      const auto target = i.target.substr(0, i.target.find('/'));
      if (!i.quoted || !folders.contains(target))
        continue;
      ++seen;
      INFO(i.file << " includes " << i.target);
      CHECK((target == folder || others.contains(target)));
    }
  CHECK(seen > 50);
}

TEST_CASE("CAF appears in actors only") {
  for (const auto& folder : folders)
    if (folder != "actors")
      for (const auto& i : includes_below(folder)) {
        INFO(i.file << " includes " << i.target);
        CHECK(!i.target.starts_with("caf/"));
      }
}

TEST_CASE("torch appears neither in replay nor in runtime outside the model") {
  for (const auto* folder : {"replay", "runtime"})
    for (const auto& i : includes_below(folder)) {
      if (i.file.starts_with("runtime/model/"))
        continue;
      INFO(i.file << " includes " << i.target);
      CHECK(!is_torch(i.target));
    }
}

TEST_CASE("no file is called utils, helpers or common") {
  for (const auto& folder : folders)
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(MILLRACE_SOURCE_DIR) / folder)) {
      if (entry.is_directory())
        continue; // trainer/gloo_declarations/gloo/common is how another library spells its path
      const auto name = entry.path().stem().string();
      INFO(entry.path());
      CHECK((name != "utils" && name != "util" && name != "helpers" && name != "common"));
    }
}
