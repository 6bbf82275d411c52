#include "test/actors/sequential_loop.hpp"

#include "rollout/controller.hpp"
#include "rollout/engine.hpp"
#include "rollout/reward.hpp"
#include "rollout/tokenized_feed.hpp"
#include "runtime/model/weight_transfer.hpp"
#include "trainer/policy.hpp"

#include <nlohmann/json.hpp>

#include <map>

namespace millrace {

void sequential_loop(settings s, const std::filesystem::path& folder) {
  std::shared_ptr<prompt_source> source = make_prompt_source(s.data, s.seed);
  s.tokenizer.alphabet = source->alphabet();
  auto judge = make_reward(s.reward);
  auto policy = std::make_shared<trainer::policy>(trainer::policy::create(s));
  std::shared_ptr<const model::tokenizer> tokens{policy, &policy->tokenizer()};
  tokenized_feed feed(source, tokens,
                      policy->config().max_position_embeddings - s.sampling.max_tokens);
  generation::engine_options o;
  o.max_batch = s.generator.max_batch;
  auto engine = generation::make_engine(o, policy->config(), tokens);
  std::int64_t next_group = 0;
  for (std::int32_t step = 0; step < s.run.steps; ++step) {
    model::transfer_weights(policy->views(), engine->staging());
    engine->install(policy->current());
    std::map<std::int64_t, scored_group> groups;
    for (int i = 0; i < s.rollout.batch_size / s.rollout.group_size; ++i) {
      auto p = feed.next();
      auto group = next_group++;
      groups[group] = {group, p.question, {}};
      groups[group].rollouts.resize(static_cast<std::size_t>(s.rollout.group_size));
      auto sampling = s.sampling;
      sampling.seed = group_seed(s.seed, group);
      for (std::int32_t k = 0; k < s.rollout.group_size; ++k)
        engine->submit({blank_rollout({group, k}, p), sampling});
    }
    while (engine->running() + engine->waiting() > 0)
      for (auto& r : engine->step()) {
        auto& g = groups[r.id.group];
        auto verdict = judge->judge(g.question, r.text, r.finish);
        r.reward = verdict.reward;
        r.correct = verdict.correct;
        g.rollouts[static_cast<std::size_t>(r.id.sample)] = std::move(r);
      }
    std::vector<scored_group> batch;
    for (auto& [id, g] : groups)
      batch.push_back(std::move(g));
    policy->step(policy->current(), batch);
  }
  policy->save_model(folder);
}

} // namespace millrace
