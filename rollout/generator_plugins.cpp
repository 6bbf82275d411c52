#include "rollout/generator_plugins.hpp"

#include "rollout/backend_engine.hpp"
#include "rollout/batching_engine.hpp"
#include "rollout/environment.hpp"
#include "rollout/openai_engine.hpp"
#include "runtime/plugins/json_parameters.hpp"

#include <cmath>

namespace millrace::generation {

registry<backend_entry>& backends() {
  static registry<backend_entry> all("generator");
  return all;
}

registry<sampler_entry>& samplers() {
  static registry<sampler_entry> all("sampler");
  return all;
}

void add_plugin_generators(const plugins::loaded_plugin& from) {
  for (const auto& [name, r] : from.generators)
    backends().add(name, r.help, r);
  for (const auto& [name, r] : from.samplers)
    samplers().add(name, r.help, r);
}

void check_plugin_names(const generator_settings& s) {
  if (s.backend.name == openai_backend)
    static_cast<void>(openai_endpoint::from(s.backend.params));
  else if (!s.backend.name.empty())
    static_cast<void>(backends().get(s.backend.name, "generator.backend.name"));
  if (!s.sampler.name.empty())
    static_cast<void>(samplers().get(s.sampler.name, "generator.sampler.name"));
}

namespace {

/// A plugin's sampler for the built-in engine: what it draws is checked, since a wrong token or
/// log-prob would quietly spoil the training.
auto drawing_by(const sampler_entry& r, const nlohmann::json& params) {
  std::shared_ptr<const plugin::sampler> by = plugins::make(r, params, "generator.sampler.params");
  return [by, from = r.from](std::span<float> logits, const sampling_params& p, double draw,
                             std::span<const std::int32_t> forbidden) -> sampled_token {
    const auto t = plugins::guarded(from, "sample() threw", [&] {
      return by->sample(logits,
                        {p.temperature, p.top_p, p.min_p, p.top_k, p.max_tokens, p.min_tokens}, draw,
                        forbidden);
    });
    if (t.token < 0 || static_cast<std::size_t>(t.token) >= logits.size())
      plugins::blame(from, "sample()", "drew token " + std::to_string(t.token)
                                         + ", expected one below " + std::to_string(logits.size()));
    if (!std::isfinite(t.logp) || t.logp > 1e-3F)
      plugins::blame(from, "sample()", "gave the log-prob " + std::to_string(t.logp)
                                         + ", expected a finite one of at most 0");
    return {t.token, std::min(t.logp, 0.0F), 0};
  };
}

auto make_backend(const generator_settings& s, const engine_options& options,
                  const model::model_config& config, const model::tokenizer* tokens) {
  const auto& r = backends().get(s.backend.name, "generator.backend.name");
  const auto o = resolved(options, config, tokens);
  const plugin::generator_context context{model::to_json(config).dump(),
                                          static_cast<std::int32_t>(config.vocab_size),
                                          o.max_context, o.max_batch, o.threads};
  return plugins::make(r, s.backend.params, "generator.backend.params", context);
}

std::unique_ptr<engine> make_inner(const generator_settings& s, engine_options options,
                                   const model::model_config& config,
                                   std::shared_ptr<const model::tokenizer> tokens) {
  if (!s.sampler.name.empty())
    options.draw = drawing_by(samplers().get(s.sampler.name, "generator.sampler.name"),
                              s.sampler.params);
  if (s.backend.name == openai_backend)
    return make_openai_engine(openai_endpoint::from(s.backend.params), options, config,
                              std::move(tokens));
  if (s.backend.name.empty())
    return make_engine(options, config, std::move(tokens));
  auto backend = make_backend(s, options, config, tokens.get());
  return std::make_unique<backend_engine>(
    backends().get(s.backend.name, "generator.backend.name").from, std::move(backend), options,
    config, std::move(tokens));
}

} // namespace

void check_plugin_parameters(const generator_settings& s, const model::model_config* config) {
  if (!s.sampler.name.empty())
    static_cast<void>(plugins::make(samplers().get(s.sampler.name, "generator.sampler.name"),
                                    s.sampler.params, "generator.sampler.params"));
  if (config && !s.backend.name.empty() && s.backend.name != openai_backend)
    static_cast<void>(make_backend(s, {}, *config, nullptr));
}

std::unique_ptr<engine> make_engine(const settings& s, engine_options options,
                                    const model::model_config& config,
                                    std::shared_ptr<const model::tokenizer> tokens,
                                    std::shared_ptr<const prompt_source> prompts) {
  const auto context = resolved(options, config, tokens.get()).max_context;
  auto inner = make_inner(s.generator, std::move(options), config, tokens);
  const auto& world = s.rollout.environment;
  if (world.name.empty())
    return inner;
  return with_environment(std::move(inner),
                          environments().get(world.name, "rollout.environment.name"), world.params,
                          std::move(tokens), std::move(prompts), context);
}

} // namespace millrace::generation
