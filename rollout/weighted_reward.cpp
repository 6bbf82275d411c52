#include "rollout/weighted_reward.hpp"

#include "runtime/config/options.hpp"
#include "runtime/error.hpp"

namespace millrace {

void describe(option_list& v, weighted_part& o) {
  v("kind", o.kind, "The reward's name");
  v("weight", o.weight, any_number(), "What its reward is multiplied by");
  v("params", o.params, "Its parameters");
}

void describe(option_list& v, weighted_options& o) {
  v.list("parts", o.parts,
         "The rewards that are added up, each {\"kind\", \"weight\", \"params\"}; whether an answer is "
         "right is the first one's word");
}

weighted_reward::weighted_reward(std::vector<part> parts) : parts_(std::move(parts)) {
  ensure(!parts_.empty(), "a weighted reward without parts");
}

std::unique_ptr<reward> weighted_reward::make(const nlohmann::json& params,
                                              const std::string& where) {
  weighted_options options;
  read_params(options, params, "configuration", where);
  if (options.parts.empty())
    throw user_error(where + ".parts: found none, expected a list of at least one {\"kind\", "
                     "\"weight\", \"params\"}");
  std::vector<part> parts;
  for (std::size_t i = 0; i < options.parts.size(); ++i) {
    const auto& p = options.parts[i];
    parts.push_back({make_reward(p.kind, p.params, where + ".parts." + std::to_string(i) + ".params"),
                     p.weight});
  }
  return std::make_unique<weighted_reward>(std::move(parts));
}

verdict weighted_reward::judge(const prompt& question, std::string_view answer,
                               finish_reason finish) const {
  verdict sum;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto v = parts_[i].judge->judge(question, answer, finish);
    sum.reward += parts_[i].weight * v.reward;
    sum.judged = sum.judged && v.judged;
    if (i == 0)
      sum.correct = v.correct;
    sum.detail.append(i > 0 ? "; " : "").append(v.detail);
    if (!v.failure.empty())
      sum.failure = v.failure;
  }
  return sum;
}

} // namespace millrace
