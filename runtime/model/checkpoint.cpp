#include "runtime/model/checkpoint.hpp"

#include "runtime/error.hpp"
#include "runtime/model/safetensors.hpp"
#include "runtime/random.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <system_error>

namespace millrace::model {

void save_checkpoint(const std::filesystem::path& folder, const model_config& config,
                     const std::vector<tensor_view>& parameters, const tokenizer* tokens) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem)
    throw user_error(folder.string() + ": cannot be made: " + problem.message());
  write_safetensors(folder / "model.safetensors", parameters);
  if (tokens)
    tokens->save(folder);
  write_file_atomically(folder / "config.json", to_json(config).dump(2) + "\n");
}

namespace {

using views_by_name = std::map<std::string_view, const tensor_view*>;

bool is_scale(std::string_view name, const views_by_name& all) {
  constexpr std::string_view end = "_scale";
  if (!name.ends_with(end))
    return false;
  const auto matrix = all.find(name.substr(0, name.size() - end.size()));
  return matrix != all.end() && matrix->second->type == dtype::i8;
}

/// Symmetric 8-bit integers with a scale per row, as weights travel to generators.
void read_quantised(const safetensors_folder& stored, const tensor_view& matrix,
                    const tensor_view& scales) {
  const auto rows = static_cast<std::size_t>(matrix.shape.at(0));
  const auto width = static_cast<std::size_t>(matrix.elements()) / std::max<std::size_t>(rows, 1);
  std::vector<float> whole(rows * width);
  auto view = matrix;
  view.type = dtype::f32;
  view.data = reinterpret_cast<std::byte*>(whole.data());
  stored.read(view);
  auto* q = reinterpret_cast<std::int8_t*>(matrix.data);
  auto* scale = reinterpret_cast<float*>(scales.data);
  for (std::size_t r = 0; r < rows; ++r) {
    const auto* row = whole.data() + r * width;
    float largest = 0;
    for (std::size_t i = 0; i < width; ++i)
      largest = std::max(largest, std::abs(row[i]));
    scale[r] = largest > 1e-30F ? largest / 127.0F : 1.0F; // as weight sync quantises
    const float inverse = 1.0F / scale[r];
    for (std::size_t i = 0; i < width; ++i)
      q[r * width + i] = static_cast<std::int8_t>(
        std::clamp(std::nearbyint(row[i] * inverse), -127.0F, 127.0F));
  }
}

} // namespace

void load_checkpoint(const std::filesystem::path& folder,
                     const std::vector<tensor_view>& parameters) {
  const safetensors_folder stored(folder);
  std::map<std::string_view, const tensor_view*> by_name;
  for (const auto& p : parameters)
    by_name[p.name] = &p;
  for (const auto& p : parameters) {
    auto view = p;
    if (p.name == "lm_head.weight" && !stored.contains(p.name))
      view.name = "model.embed_tokens.weight";
    const auto scales = by_name.find(p.name + "_scale");
    if (p.type == dtype::i8 && scales != by_name.end())
      read_quantised(stored, view, *scales->second);
    else if (!is_scale(p.name, by_name))
      stored.read(view);
  }
}

void initialise(const model_config& config, const std::vector<tensor_view>& parameters,
                std::uint64_t seed) {
  const auto ends_with = [](std::string_view text, std::string_view end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
  };
  const auto narrow = 1 / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  for (const auto& p : parameters) {
    ensure(p.type == dtype::f32 && p.memory == memory_kind::host,
           p.name + ": initial weights are made as fp32 in host memory");
    auto* x = reinterpret_cast<float*>(p.data);
    const auto n = p.elements();
    if (p.shape.size() == 1) {
      const float value = ends_with(p.name, ".bias") ? 0.0F : 1.0F;
      for (std::int64_t i = 0; i < n; ++i)
        x[i] = value;
      continue;
    }
    auto scale = config.initializer_range;
    if (ends_with(p.name, "o_proj.weight") || ends_with(p.name, "down_proj.weight"))
      scale *= narrow;
    const auto factor = static_cast<float>(scale);
    random_stream draws(seed, stream_of(p.name));
    for (std::int64_t i = 0; i < n; ++i)
      x[i] = factor * draws.normal();
  }
}

} // namespace millrace::model
