#include "runtime/model/checkpoint.hpp"

#include "runtime/error.hpp"
#include "runtime/model/safetensors.hpp"
#include "runtime/random.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
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

void load_checkpoint(const std::filesystem::path& folder,
                     const std::vector<tensor_view>& parameters) {
  const safetensors_folder stored(folder);
  for (const auto& p : parameters) {
    auto view = p;
    if (p.name == "lm_head.weight" && !stored.contains(p.name))
      view.name = "model.embed_tokens.weight";
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
