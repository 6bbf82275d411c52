// policy_loss_vectors FILE: runs worked cases (see test/golden/) on the library's functions, each
// in fp64 and fp32, losses on padded and packed layouts. One FAIL line for each miss; a method,
// parameter or field that is not known is a failure.

#include "policy_loss/advantage.hpp"
#include "policy_loss/loss.hpp"
#include "policy_loss/vectors/cases.hpp"
#include "policy_loss/vectors/values.hpp"
#include "runtime/error.hpp"

#include <ATen/Parallel.h>

#include <fstream>
#include <functional>
#include <iostream>
#include <map>

namespace millrace::policy_loss::vectors {

namespace {

struct method {
  std::string kind;
  std::function<void(const one_case&, report&)> run;
};

std::map<std::string, method> known_methods() {
  std::map<std::string, method> result{
    {"ppo_value_clip", {"value_loss", run_value_loss}},
    {"kl_reward", {"advantage", run_kl_reward}},
    {"mismatch_stats", {"stats", run_mismatch_stats}},
    {"sequence_stats", {"stats", run_sequence_stats}},
    {"staleness_stats", {"stats", run_staleness_stats}},
    {"vcpo_lr_scale", {"scalar", run_vcpo}},
    {"areal_admission", {"scalar", run_admission}},
    {"ppo_ewma_update", {"param_update", run_ewma}},
    {"beta_prox", {"scalar", run_beta}},
    {"ewma_auto_reset", {"state", run_auto_reset}},
    {"stitch_by_version", {"select", run_stitch}},
    {"areal_prox_approx", {"prox", run_areal_prox}},
  };
  for (const auto& name : builtin_losses().names())
    result[name] = {"loss", run_loss};
  for (const auto& name : builtin_advantages().names())
    result[name] = {"advantage", run_advantage};
  return result;
}

const std::set<std::string> fields{"name",   "group",         "kind",     "method",
                                   "params", "inputs",        "expected", "stop_gradient",
                                   "note",   "fd_checked",    "source"};

void run_checked(const nlohmann::json& source, at::ScalarType type, report& to) {
  static const auto methods = known_methods();
  for (const auto* needed : {"kind", "method", "expected"})
    if (!source.contains(needed))
      throw user_error(std::string("field \"") + needed + "\" is missing");
  for (const auto& [field, value] : source.items())
    if (!fields.contains(field))
      throw user_error("unknown field \"" + field + "\"");
  auto name = source.at("method").get<std::string>();
  auto found = methods.find(name);
  if (found == methods.end())
    throw user_error("unknown method \"" + name + "\"");
  auto kind = source.at("kind").get<std::string>();
  if (kind != found->second.kind)
    throw user_error("method \"" + name + "\" is of kind \"" + found->second.kind + "\", not \""
                     + kind + "\"");
  auto part = [&](const char* field) {
    return source.contains(field) ? source.at(field) : nlohmann::json::object();
  };
  found->second.run({name, part("params"), part("inputs"), part("expected"), type}, to);
}

bool run(const nlohmann::json& source) {
  if (!source.is_object()) {
    report{"(unnamed)", "any", 0}.fail("case", source.dump(), "an object");
    return false;
  }
  auto text = [&](const char* field) {
    return source.contains(field) && source[field].is_string() ? source[field].get<std::string>()
                                                               : std::string();
  };
  auto name = text("name").empty() ? "(unnamed)" : text("name");
  auto passed = true;
  for (auto type : {at::kDouble, at::kFloat}) {
    auto fp64 = type == at::kDouble;
    // GSPO's clip is a few 1e-4 around 1, near what fp32 log-probs resolve.
    auto tolerance = fp64 ? 1e-9 : text("method") == "gspo" ? 1e-3 : 1e-5;
    report to{name, fp64 ? "fp64" : "fp32", tolerance};
    try {
      run_checked(source, type, to);
    } catch (const std::exception& e) {
      to.fail(e.what(), "an error", "a result");
    }
    passed = passed && to.passed();
  }
  return passed;
}

int run_file(const char* path) {
  std::ifstream file{path};
  if (!file)
    throw user_error(std::string("cannot read ") + path);
  auto cases = nlohmann::json::parse(file);
  if (!cases.is_array())
    throw user_error(std::string(path) + ": expected a list of cases");
  std::size_t passed = 0;
  for (const auto& one : cases)
    passed += run(one) ? 1 : 0;
  std::cout << passed << " passed, " << cases.size() - passed << " failed\n";
  return passed == cases.size() ? 0 : 1;
}

} // namespace

} // namespace millrace::policy_loss::vectors

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: policy_loss_vectors FILE\n";
    return 2;
  }
  try {
    at::set_num_threads(1);
    return millrace::policy_loss::vectors::run_file(argv[1]);
  } catch (const std::exception& e) {
    std::cerr << "policy_loss_vectors: " << e.what() << '\n';
    return 2;
  }
}
