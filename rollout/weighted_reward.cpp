#include "rollout/weighted_reward.hpp"

#include "runtime/config/options.hpp"
#include "runtime/error.hpp"

namespace millrace {

namespace {

struct part_options {
  std::string kind;
  float weight = 1;
  nlohmann::json params = nlohmann::json::object();
};
void describe(option_list& v, part_options& o) {
  v("kind", o.kind, "The reward's name");
  v("weight", o.weight, any_number(), "What its reward is multiplied by");
  v("params", o.params, "Its parameters");
}

} // namespace

weighted_reward::weighted_reward(std::vector<part> parts) : parts_(std::move(parts)) {
  ensure(!parts_.empty(), "a weighted reward without parts");
}

std::unique_ptr<reward> weighted_reward::make(const nlohmann::json& params,
                                              const std::string& where) {
  if (!params.is_object() || params.size() != 1 || !params.contains("parts"))
    throw user_error(where + ": found " + describe_value(params)
                     + ", expected an object with \"parts\" and nothing else");
  const auto& list = params["parts"];
  if (!list.is_array() || list.empty())
    throw user_error(where + ".parts: found " + describe_value(list)
                     + ", expected a list of at least one {\"kind\", \"weight\", \"params\"}");
  std::vector<part> parts;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto here = where + ".parts." + std::to_string(i);
    part_options p;
    read_params(p, list[i], "configuration", here);
    parts.push_back({make_reward(p.kind, p.params, here + ".params"), p.weight});
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
