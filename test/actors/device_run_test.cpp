// What asks for a CUDA device where this process sees none ends at once, in one line that says so.

#include "runtime/model/checkpoint.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/tokenizer.hpp"
#include "runtime/scratch_folder.hpp"

#include <catch2/catch.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace millrace;
namespace fs = std::filesystem;

namespace {

struct ended {
  std::string said;
  int status = -1;
};

/// The program with these arguments, its output and its errors, on a machine whose GPUs are hidden.
ended run_without_gpu(const std::string& arguments) {
  ended e;
  const auto command = "CUDA_VISIBLE_DEVICES= '" MILLRACE_PROGRAM "' " + arguments + " 2>&1";
  auto* out = ::popen(command.c_str(), "r");
  REQUIRE(out != nullptr);
  for (char part[512]; std::fgets(part, sizeof part, out) != nullptr;)
    e.said += part;
  const auto status = ::pclose(out);
  e.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return e;
}

void tiny_model(const fs::path& folder) {
  model::model_config c;
  c.vocab_size = 32;
  c.hidden_size = 16;
  c.intermediate_size = 24;
  c.num_hidden_layers = 1;
  c.num_attention_heads = c.num_key_value_heads = 2;
  c.head_dim = 8;
  std::vector<std::vector<float>> memory;
  std::vector<tensor_view> views;
  for (const auto& p : model::parameter_shapes(c)) {
    tensor_view v{p.name, dtype::f32, p.shape, nullptr};
    memory.emplace_back(static_cast<std::size_t>(v.elements()));
    v.data = reinterpret_cast<std::byte*>(memory.back().data());
    views.push_back(std::move(v));
  }
  model::initialise(c, views, 1);
  const auto tokens = model::make_character_tokenizer({"abcdefghijklmnopqrstuvwxyz .", false});
  model::save_checkpoint(folder, c, views, tokens.get());
}

} // namespace

TEST_CASE("a device that isn't there is told in one line") {
  const scratch_folder scratch("millrace-test");
  const auto folder = (scratch.path() / "model").string();
  tiny_model(folder);
  REQUIRE(run_without_gpu("generate '" + folder + "' --prompt a --max-tokens 2").status == 0);
  std::ofstream(scratch.path() / "questions.jsonl") << R"({"question": "a", "answer": "#### 1"})" "\n";
  const auto data = (scratch.path() / "questions.jsonl").string();
  for (const auto& command : {"generate '" + folder + "' --prompt a --device cuda --dtype fp8",
                              "eval '" + folder + "' '" + data + "' --device cuda",
                              "serve '" + folder + "' --port 0 --device cuda"}) {
    const auto e = run_without_gpu(command);
    INFO(command << ":\n" << e.said);
    REQUIRE(e.status == 2);
    REQUIRE(std::ranges::count(e.said, '\n') == 1);
    REQUIRE(e.said.starts_with("millrace: --device: found \"cuda\", but "));
    REQUIRE(e.said.ends_with("set \"cpu\"\n"));
  }
}

TEST_CASE("a run on a device that isn't there ends before it has a folder") {
  const scratch_folder scratch("millrace-test");
  const auto config = scratch.path() / "c.json", run = scratch.path() / "run";
  std::ofstream(config) << "{}";
  const auto e = run_without_gpu("run '" + config.string() + "' --run-dir '" + run.string()
                                 + "' --set generator.device=cuda");
  INFO(e.said);
  REQUIRE(e.status == 2);
  REQUIRE(std::ranges::count(e.said, '\n') == 1);
  REQUIRE(e.said.starts_with("millrace: generator.device: found \"cuda\", but "));
  REQUIRE_FALSE(fs::exists(run));
}

TEST_CASE("8 bits are of the device") {
  const scratch_folder scratch("millrace-test");
  const auto folder = (scratch.path() / "model").string();
  tiny_model(folder);
  auto e = run_without_gpu("generate '" + folder + "' --prompt a --dtype fp8");
  REQUIRE(e.status == 2);
  REQUIRE(e.said == "millrace: --dtype: found \"fp8\" with --device cpu, whose 8 bits are \"int8\"\n");
  e = run_without_gpu("generate '" + folder + "' --prompt a --dtype int8 --device cuda");
  REQUIRE(e.said == "millrace: --dtype: found \"int8\" with --device cuda, whose 8 bits are \"fp8\"\n");
}
