#include "trainer/old_logit_scoring.hpp"

#include "trainer/scoring.hpp"

#include <ATen/core/grad_mode.h>

#include <set>

namespace millrace::trainer {

namespace {

/// A sequence cut after its last wanted token; all other tokens are context.
struct prefix {
  std::size_t of;
  std::vector<std::int32_t> versions;
};

std::vector<prefix> prefixes(std::optional<version> v,
                             std::span<const training_sequence> sequences,
                             std::span<const std::size_t> which, const token_filter& wanted) {
  std::vector<prefix> out;
  for (auto s : which) {
    prefix p{s, {}};
    const auto& all = sequences[s].versions;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i] >= 0 && (!v || all[i] == v->value) && (!wanted || wanted(s, i))) {
        p.versions.resize(i + 1, no_version.value);
        p.versions[i] = all[i];
      }
    if (!p.versions.empty())
      out.push_back(std::move(p));
  }
  return out;
}

} // namespace

scoring_options scoring_options_of(const settings& s) {
  return {s.trainer.micro_batch_tokens, s.trainer.packing,
          s.sampling.temperature > 0 ? s.sampling.temperature : 1.0, s.trainer.share_prompts};
}

std::int64_t score_version(const model::transformer& network, std::optional<version> v,
                           std::span<const training_sequence> sequences,
                           std::span<const std::size_t> which, const scoring_options& how,
                           const version_sink& found, const token_filter& wanted) {
  auto cut = prefixes(v, sequences, which, wanted);
  if (cut.empty())
    return 0;
  std::vector<training_sequence> parts;
  std::vector<std::size_t> all;
  for (const auto& p : cut) {
    auto part = sequences[p.of];
    part.tokens = part.tokens.first(p.versions.size());
    part.behaviour_logp = part.behaviour_logp.first(p.versions.size());
    part.versions = p.versions;
    all.push_back(parts.size());
    parts.push_back(part);
  }
  at::NoGradGuard no_grad;
  token_layout layout(parts);
  batch_scorer scorer(parts, layout, how.micro_batch_tokens, how.packing, how.temperature,
                      how.share_prompts);
  std::int64_t processed = 0;
  for (const auto& group : scorer.split(all)) {
    auto packed = scorer.packed(group);
    processed += static_cast<std::int64_t>(packed.tokens.size());
    auto scored = score_tokens(network, packed, how.temperature)
                    .logp.to(at::TensorOptions(at::kCPU).dtype(at::kFloat))
                    .contiguous();
    const auto* logp = scored.const_data_ptr<float>();
    for (auto i : group)
      for (std::size_t t = 0; t < cut[i].versions.size(); ++t)
        if (cut[i].versions[t] >= 0)
          found(cut[i].of, t, *logp++);
  }
  return processed;
}

std::vector<version> versions_present(std::span<const training_sequence> sequences,
                                      std::span<const std::size_t> which) {
  std::set<version, std::greater<>> found;
  for (auto s : which)
    for (auto v : sequences[s].versions)
      if (v >= 0)
        found.insert({v});
  return {found.begin(), found.end()};
}

} // namespace millrace::trainer
