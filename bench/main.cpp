// millrace-bench NAME [--json FILE] [--quick] [--model FOLDER] [--list]

#include "bench/benchmarks.hpp"
#include "runtime/model/tensor_pool.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

namespace millrace::bench {

double median(std::vector<double> values) {
  if (values.empty())
    return 0;
  std::sort(values.begin(), values.end());
  auto n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

namespace {

void print(const measurements& all) {
  for (const auto& m : all) {
    if (!m.missing.empty()) {
      std::printf("%-58s not measured: %s\n", m.name.c_str(), m.missing.c_str());
      continue;
    }
    std::printf("%-58s %10.4g %-8s", m.name.c_str(), m.value, m.unit.c_str());
    if (m.ratio)
      std::printf(" %6.3f × %s", *m.ratio, m.against.c_str());
    if (auto holds = m.holds())
      std::printf("  [%s %g: %s]", m.bar_is_upper ? "at most" : "at least", *m.bar,
                  *holds ? "holds" : "FAILS");
    std::printf("\n");
  }
}

nlohmann::json to_json(const measurements& all) {
  auto list = nlohmann::json::array();
  for (const auto& m : all) {
    nlohmann::json j = {{"name", m.name}, {"unit", m.unit}, {"against", m.against}};
    j["value"] = m.missing.empty() ? nlohmann::json(m.value) : nlohmann::json();
    j["ratio"] = m.ratio ? nlohmann::json(*m.ratio) : nlohmann::json();
    j["bar"] = m.bar ? nlohmann::json(*m.bar) : nlohmann::json();
    auto holds = m.holds();
    j["holds"] = holds ? nlohmann::json(*holds) : nlohmann::json();
    if (!m.missing.empty())
      j["missing"] = m.missing;
    list.push_back(std::move(j));
  }
  return list;
}

int run(int argc, char** argv) {
  std::string name, json_file;
  options how;
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    if (arg == "--json" && i + 1 < argc)
      json_file = argv[++i];
    else if (arg == "--model" && i + 1 < argc)
      how.model = argv[++i];
    else if (arg == "--quick")
      how.quick = true;
    else if (arg == "--list" || arg == "--help")
      name = arg;
    else
      name = arg;
  }
  for (const auto& b : benchmarks()) {
    if (name == "--list" || name == "--help" || name.empty())
      std::printf("%-12s %s\n", b.name, b.what);
    if (name != b.name)
      continue;
    auto all = b.run(how);
    print(all);
    if (!json_file.empty())
      std::ofstream(json_file) << to_json(all).dump(2) << '\n';
    return std::all_of(all.begin(), all.end(), [](auto& m) { return m.holds().value_or(true); })
             ? 0
             : 1;
  }
  if (name == "--list" || name == "--help")
    return 0;
  std::cerr << "millrace-bench: " << (name.empty() ? "name a benchmark of the list above"
                                                   : "no benchmark is called " + name)
            << '\n';
  return 2;
}

} // namespace

} // namespace millrace::bench

int main(int argc, char** argv) {
  // As `millrace run` sets them: page faults are dear, and UCX would catch signals.
  setenv("UCX_ERROR_SIGNALS", "", 0);
  millrace::model::pool_tensor_memory();
  try {
    return millrace::bench::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "millrace-bench: " << e.what() << '\n';
    return 2;
  }
}
