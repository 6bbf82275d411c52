// Weights of 8 bits in floating point, with a scale for each row, as the decoder for devices keeps
// them.

#include "runtime/model/device_weights.hpp"
#include "runtime/model/weight_transfer.hpp"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "device_decoder_fixture.hpp"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>

using namespace millrace;
using namespace millrace::model;
using test::device_decoder_of, test::weights;

TEST_CASE("E4M3 has the nearest number of each, at its row's scale") {
  const c10::InferenceMode guard;
  random_stream draws(11);
  auto x = at::empty({5, 37}, at::kFloat);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data_ptr<float>()[i] = draws.normal() * std::exp(draws.normal());
  x[3].zero_();
  const auto [q, scales] = quantised_rows(x);
  const auto back = q.to(at::kFloat) * scales;
  REQUIRE(q.to(at::kFloat).abs().max().item<float>() == 448);
  REQUIRE(back[3].abs().max().item<float>() == 0);
  for (std::int64_t r = 0; r < 5; ++r) {
    const auto smallest = scales[r].item<float>() * 0x1p-9F; // E4M3's smallest number
    const auto error = (back[r] - x[r]).abs(), bound = x[r].abs() / 16 + smallest / 2;
    REQUIRE((error <= bound).all().item<bool>());
  }
}

TEST_CASE("rows of the smallest numbers keep their zeros in E4M3") {
  const c10::InferenceMode guard;
  auto x = at::zeros({6, 4}, at::kFloat);
  const std::vector<float> largest{1e-45F, 1e-40F, 1e-38F, 1e-36F, 9e-31F, 2e-30F};
  for (std::size_t r = 0; r < largest.size(); ++r)
    x.data_ptr<float>()[4 * r + 1] = largest[r];
  const auto [q, scales] = quantised_rows(x);
  const auto back = q.to(at::kFloat) * scales;
  REQUIRE(((back - x).abs() <= 1e-30F).all().item<bool>());
  REQUIRE((back.select(1, 0) == 0).all().item<bool>());
  REQUIRE(back[5][1].item<float>() > 0);
}

TEST_CASE("E4M3's products are tried before they are needed") {
  const c10::InferenceMode guard;
  REQUIRE(has_row_scales(c10::kCPU));
}

TEST_CASE("a checkpoint comes into E4M3 as weight sync would bring it") {
  const auto config = test::small_config("qwen3");
  const weights w(config, 5);
  test::scratch_folder folder;
  save_checkpoint(folder.path(), config, w.views);
  const auto a = device_decoder_of(config, dtype::f8_e4m3);
  const auto b = device_decoder_of(config, dtype::f8_e4m3);
  load_weights(folder.path(), a->staging());
  transfer_weights(w.views, b->staging());
  const auto left = a->staging(), right = b->staging();
  REQUIRE(left.size() == right.size());
  std::size_t narrow = 0, scales = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    REQUIRE(left[i].name == right[i].name);
    REQUIRE(std::memcmp(left[i].data, right[i].data, left[i].bytes()) == 0);
    narrow += left[i].type == dtype::f8_e4m3 ? 1U : 0U;
    scales += left[i].name.ends_with("_scale") ? 1U : 0U;
  }
  REQUIRE(narrow == static_cast<std::size_t>(config.num_hidden_layers) * 7);
  REQUIRE(scales == narrow);
}
