#include "model_fixture.hpp"

#include "runtime/error.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/safetensors.hpp"

#include <catch2/catch.hpp>

#include <functional>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

using namespace millrace;
using namespace millrace::model;
using test::error_of;

namespace {

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void write_raw(const std::filesystem::path& file, const std::string& header,
               const std::string& data) {
  std::ofstream out(file, std::ios::binary);
  const std::uint64_t n = header.size();
  out.write(reinterpret_cast<const char*>(&n), 8);
  out << header << data;
}

tensor_view view_of(const std::string& name, std::vector<std::int64_t> shape,
                    std::vector<float>& data) {
  return {name, dtype::f32, std::move(shape), reinterpret_cast<std::byte*>(data.data())};
}

std::string slurp(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

} // namespace

TEST_CASE("tensors survive a file, in every float type") {
  const test::scratch_folder folder;
  std::vector<float> a{1, -2.5F, 0, 65504, 1e-7F, -0.0F}, b{3};
  write_safetensors(folder.path() / "model.safetensors",
                    {view_of("a", {2, 3}, a), view_of("b", {1}, b), view_of("empty", {0, 4}, b)});
  const safetensors_folder stored(folder.path());
  REQUIRE(stored.names() == std::vector<std::string>{"a", "b", "empty"});
  std::vector<float> read(6);
  stored.read(view_of("a", {2, 3}, read));
  REQUIRE(std::memcmp(read.data(), a.data(), 24) == 0);
  std::vector<std::uint16_t> half(6);
  for (const auto type : {dtype::f16, dtype::bf16}) {
    stored.read({"a", type, {2, 3}, reinterpret_cast<std::byte*>(half.data())});
    REQUIRE(convert_elements(reinterpret_cast<std::byte*>(half.data()), type,
                             reinterpret_cast<std::byte*>(read.data()), dtype::f32, 6));
    for (std::size_t i = 0; i < 6; ++i)
      REQUIRE(read[i] == Approx(a[i]).epsilon(0.004).margin(6e-8));
  }
}

TEST_CASE("every half float converts to fp32 and back to itself") {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto h = static_cast<std::uint16_t>(i);
    float x = 0;
    std::uint16_t back = 0;
    for (const auto type : {dtype::f16, dtype::bf16}) {
      convert_elements(reinterpret_cast<const std::byte*>(&h), type,
                       reinterpret_cast<std::byte*>(&x), dtype::f32, 1);
      convert_elements(reinterpret_cast<const std::byte*>(&x), dtype::f32,
                       reinterpret_cast<std::byte*>(&back), type, 1);
      if (!std::isnan(x))
        REQUIRE(back == h);
    }
  }
}

TEST_CASE("rounding to half is to nearest, ties to even") {
  const auto to = [](dtype type, float x) {
    std::uint16_t h = 0;
    convert_elements(reinterpret_cast<const std::byte*>(&x), dtype::f32,
                     reinterpret_cast<std::byte*>(&h), type, 1);
    return h;
  };
  REQUIRE(to(dtype::f16, 1 + 0x1p-11F) == 0x3C00);
  REQUIRE(to(dtype::f16, 1 + 3 * 0x1p-11F) == 0x3C02);
  REQUIRE(to(dtype::f16, 65520) == 0x7C00);
  REQUIRE(to(dtype::f16, 65519) == 0x7BFF);
  REQUIRE(to(dtype::f16, 0x1p-25F) == 0);
  REQUIRE(to(dtype::f16, 0x1.8p-25F) == 1);
  REQUIRE(to(dtype::bf16, 1 + 0x1p-8F) == 0x3F80);
  REQUIRE(to(dtype::bf16, 1 + 3 * 0x1p-8F) == 0x3F82);
}

TEST_CASE("damaged files are refused with file and tensor") {
  const test::scratch_folder folder;
  const auto file = folder.path() / "model.safetensors";
  const auto refused = [&](const std::string& header, const std::string& data,
                           const std::string& expected) {
    write_raw(file, header, data);
    const auto e = error_of([&] { safetensors_file f(file); });
    INFO(header << " gave: " << e);
    REQUIRE(says(e, file.string()));
    REQUIRE(says(e, expected));
  };
  const std::string four(4, 'x'), eight(8, 'x');
  refused("not json", "", "JSON");
  refused("[]", "", "JSON");
  refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", four, "truncated");
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", eight, "\"a\"");
  refused(R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", four, "F31");
  refused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", four, "whole numbers");
  refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,4]}})", four,
          "impossibly large");
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", four, "data_offsets");
  refused(R"({"a":{"dtype":"F32","shape":[1]}})", four, "data_offsets");
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
              "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", four, "overlaps");
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", eight, "gap");
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", eight, "after its last");
  std::ofstream(file, std::ios::binary) << "abc";
  REQUIRE(says(error_of([&] { safetensors_file f(file); }), "truncated"));
  std::ofstream(file, std::ios::binary) << std::string(8, '\xFF') << "{}";
  REQUIRE(says(error_of([&] { safetensors_file f(file); }), "header"));
  REQUIRE(says(error_of([&] { safetensors_file f(folder.path() / "none"); }), "cannot be opened"));
}

TEST_CASE("weights that are no finite numbers are refused by tensor and element") {
  const test::scratch_folder folder;
  const auto file = folder.path() / "model.safetensors";
  for (const std::size_t size : {1U, 4096U, 4097U, 9000U})
    for (const auto bad : {std::numeric_limits<float>::quiet_NaN(),
                           -std::numeric_limits<float>::infinity()})
      for (const std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
        std::vector<float> x(size, 1.5F), read(size);
        x[at] = bad;
        write_safetensors(file, {view_of("x", {static_cast<std::int64_t>(size)}, x)});
        for (const auto type : {dtype::f32, dtype::bf16, dtype::f16}) {
          auto into = view_of("x", {static_cast<std::int64_t>(size)}, read);
          into.type = type;
          const auto error = error_of([&] { safetensors_folder(folder.path()).read(into); });
          INFO(error);
          REQUIRE(says(error, file.string()));
          REQUIRE(says(error, "\"x\": element " + std::to_string(at) + " of"));
          REQUIRE(says(error, "diverge"));
        }
      }
  std::vector<float> large{1e30F};
  std::uint16_t half = 0;
  write_safetensors(file, {view_of("x", {1}, large)});
  REQUIRE(says(error_of([&] {
    safetensors_folder(folder.path()).read({"x", dtype::f16, {1},
                                            reinterpret_cast<std::byte*>(&half)});
  }), "no finite number in F16"));
}

TEST_CASE("no change of bytes crashes the reader") {
  const std::uint64_t seed = 11;
  INFO("seed " << seed);
  const test::scratch_folder folder;
  const auto file = folder.path() / "model.safetensors";
  std::vector<float> a(12, 1.5F), b(5, 2);
  write_safetensors(file, {view_of("a", {3, 4}, a), view_of("b", {5}, b)});
  const auto good = slurp(file);
  random_stream draws(seed);
  int accepted = 0;
  for (int round = 0; round < 1500; ++round) {
    auto bytes = good;
    for (auto n = 1 + draws.below(4); n > 0; --n) {
      const auto at = draws.below(bytes.size());
      switch (draws.below(4)) {
        case 0: bytes[at] = static_cast<char>(draws.below(256)); break;
        case 1: bytes.resize(std::max<std::size_t>(at, 1)); break;
        case 2: bytes.insert(at, 1, static_cast<char>(draws.below(256))); break;
        default: bytes[at] ^= static_cast<char>(1U << draws.below(8)); break;
      }
    }
    std::ofstream(file, std::ios::binary) << bytes;
    try {
      const safetensors_folder stored(folder.path());
      std::vector<float> into(12);
      stored.read(view_of("a", {3, 4}, into));
      ++accepted;
    } catch (const user_error&) {
    }
  }
  REQUIRE(accepted < 1500);
}

TEST_CASE("sharded folders are read through their index") {
  const test::scratch_folder folder;
  std::vector<float> a{1, 2}, b{3}, into(2);
  write_safetensors(folder.path() / "one.safetensors", {view_of("a", {2}, a)});
  write_safetensors(folder.path() / "two.safetensors", {view_of("b", {1}, b)});
  const auto index = folder.path() / "model.safetensors.index.json";
  write_file_atomically(index, R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const safetensors_folder stored(folder.path());
  stored.read(view_of("a", {2}, into));
  REQUIRE(into == a);
  REQUIRE(says(error_of([&] { stored.read(view_of("c", {1}, into)); }), "\"c\" is missing"));
  REQUIRE(says(error_of([&] { stored.read(view_of("a", {1, 2}, into)); }), "[2]"));
  const auto broken = [&](const std::string& text) {
    write_file_atomically(index, text);
    return error_of([&] { safetensors_folder f(folder.path()); });
  };
  REQUIRE(says(broken(R"({"weight_map":{"z":"one.safetensors"}})"), "\"z\" is missing"));
  REQUIRE(says(broken(R"({"weight_map":{"a":"../one.safetensors"}})"), "not a file name"));
  REQUIRE(says(broken(R"({"weight_map":{"a":"none.safetensors"}})"), "cannot be opened"));
  REQUIRE(says(broken("{"), "weight_map"));
  std::filesystem::remove(index);
  REQUIRE(says(error_of([&] { safetensors_folder f(folder.path()); }), "neither"));
}

TEST_CASE("a write that fails leaves the old file") {
  const test::scratch_folder folder;
  const auto file = folder.path() / "x";
  write_file_atomically(file, "old");
  const auto blocked = folder.path() / "no-such-folder" / "x";
  REQUIRE(says(error_of([&] { write_file_atomically(blocked, "new"); }), blocked.string()));
  write_file_atomically(file, "new");
  REQUIRE(slurp(file) == "new");
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(folder.path()))
    ++files;
  REQUIRE(files == 1);
}

TEST_CASE("initial weights are the same bits everywhere") {
  auto c = test::small_config();
  std::vector<std::vector<float>> memory;
  std::vector<tensor_view> views;
  for (const auto& p : parameter_shapes(c)) {
    tensor_view v{p.name, dtype::f32, p.shape, nullptr};
    memory.emplace_back(static_cast<std::size_t>(v.elements()));
    v.data = reinterpret_cast<std::byte*>(memory.back().data());
    views.push_back(v);
  }
  initialise(c, views, 42);
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const auto& m : memory)
    for (const float x : m) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &x, 4);
      hash = (hash ^ bits) * 0x100000001b3U;
    }
  REQUIRE(hash == 0x3abd8b8be9c2387eU);
}
