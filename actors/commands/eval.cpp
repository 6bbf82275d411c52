#include "actors/commands.hpp"
#include "actors/console.hpp"
#include "actors/interrupt.hpp"
#include "actors/opened_model.hpp"
#include "rollout/controller.hpp"
#include "rollout/prompt_source.hpp"
#include "rollout/reward.hpp"
#include "rollout/tokenized_feed.hpp"
#include "runtime/config/settings.hpp"
#include "runtime/error.hpp"

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <fstream>

namespace millrace {
namespace {

struct eval_arguments {
  engine_arguments engine;
  data_settings data;
  reward_settings reward;
  std::string reward_params = "{}", answers, chat = "auto";
  sampling_params sampling{.temperature = 0, .max_tokens = 512};
  std::int64_t limit = 0;
  std::int32_t samples = 1;
};

double seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

/// What has been judged so far.
struct tally {
  std::int64_t answers = 0, correct = 0, truncated = 0, tokens = 0;
  double reward = 0;
};

class evaluator {
public:
  explicit evaluator(const eval_arguments& a) : a_(a) {
    auto reward = a.reward;
    reward.params = nlohmann::json::parse(a.reward_params, nullptr, false);
    if (!reward.params.is_object())
      throw user_error("--reward-params: found " + a.reward_params + ", expected a JSON object");
    judge_ = make_reward(reward);
    auto data = a.data;
    data.source = "jsonl";
    data.held_out = 0;
    data.shuffle = false;
    source_ = make_prompt_source(data, a.sampling.seed);
    model_ = open_model(a.engine);
    if (a.chat == "auto")
      model_.tokens->use_chat();
    if (!a.answers.empty()) {
      file_.open(a.answers);
      if (!file_)
        throw user_error("--answers: " + a.answers + " can't be written");
    }
  }

  int run() {
    note_interrupts();
    submit();
    const auto begin = seconds();
    const auto all = static_cast<double>(expected_);
    while (t_.answers < expected_ && interrupts() == 0) {
      for (const auto& r : model_.engine->step())
        judge(r);
      char text[96];
      std::snprintf(text, sizeof text, "%lld/%lld, accuracy %.3f",
                    static_cast<long long>(t_.answers), static_cast<long long>(expected_),
                    t_.answers > 0 ? static_cast<double>(t_.correct) / t_.answers : 0.0);
      screen_.progress("evaluating", static_cast<double>(t_.answers) / all, text);
    }
    screen_.end_progress();
    report(seconds() - begin);
    return interrupts() > 0 ? 130 : 0;
  }

private:
  void submit() {
    auto count = source_->epoch_size();
    if (a_.limit > 0)
      count = std::min(count, a_.limit);
    for (std::int64_t i = 0; i < count; ++i) {
      fed_prompt p{source_->at(i), {}};
      p.tokens = prompt_tokens(*model_.tokens, p.question.text);
      const auto room = model_.context - static_cast<std::int64_t>(p.tokens.size());
      if (room < 1) {
        ++passed_over_;
        continue;
      }
      auto sampling = a_.sampling;
      sampling.max_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(sampling.max_tokens, room));
      for (std::int32_t k = 0; k < a_.samples; ++k)
        model_.engine->submit(
          {blank_rollout({static_cast<std::int64_t>(questions_.size()), k}, p), sampling});
      questions_.push_back(std::move(p.question));
    }
    expected_ = static_cast<std::int64_t>(questions_.size()) * a_.samples;
    if (expected_ == 0)
      throw user_error(a_.data.file + ": no prompt leaves room for an answer in a context of "
                       + std::to_string(model_.context) + " tokens");
  }

  void judge(const rollout& r) {
    const auto& question = questions_[static_cast<std::size_t>(r.id.group)];
    const auto v = judge_->judge(question, r.text, r.finish);
    ++t_.answers;
    t_.correct += v.correct ? 1 : 0;
    t_.reward += v.reward;
    t_.truncated += r.finish == finish_reason::length ? 1 : 0;
    t_.tokens += r.generated();
    if (file_.is_open())
      file_ << nlohmann::ordered_json{{"prompt", question.text}, {"expected", question.answer},
                                      {"sample", r.id.sample}, {"text", r.text},
                                      {"correct", v.correct}, {"reward", v.reward},
                                      {"detail", v.detail}, {"tokens", r.generated()}}
                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
            << '\n';
  }

  void report(double spent) {
    const auto n = static_cast<double>(std::max<std::int64_t>(t_.answers, 1));
    char text[256];
    std::snprintf(text, sizeof text,
                  "accuracy %.4f (%lld of %lld)  reward %.4f  length %.1f  truncated %.1f%%  "
                  "%.1f tokens/s",
                  static_cast<double>(t_.correct) / n, static_cast<long long>(t_.correct),
                  static_cast<long long>(t_.answers), t_.reward / n,
                  static_cast<double>(t_.tokens) / n, 100 * static_cast<double>(t_.truncated) / n,
                  spent > 0 ? static_cast<double>(t_.tokens) / spent : 0.0);
    screen_.line(text);
    if (passed_over_ > 0)
      screen_.line(std::to_string(passed_over_) + " prompts left no room for an answer, and were "
                   "passed over");
  }

  eval_arguments a_;
  console screen_;
  std::unique_ptr<reward> judge_;
  std::unique_ptr<prompt_source> source_;
  opened_model model_;
  std::vector<prompt> questions_;
  std::ofstream file_;
  std::int64_t expected_ = 0, passed_over_ = 0;
  tally t_;
};

} // namespace

void add_eval_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("eval", "Measure a model's accuracy on a file of questions");
  auto a = std::make_shared<eval_arguments>();
  add_engine_arguments(*cmd, a->engine);
  cmd->add_option("data", a->data.file, "JSON lines, as for data.file")->required();
  cmd->add_option("--question-field", a->data.question_field, "")->capture_default_str();
  cmd->add_option("--answer-field", a->data.answer_field, "")->capture_default_str();
  cmd->add_option("--template", a->data.prompt_template, "What the model reads; {question} is "
                                                         "replaced")->capture_default_str();
  cmd->add_option("--chat", a->chat, "auto: through the model's chat template, where it has one; "
                                     "none")->check(CLI::IsMember({"auto", "none"}));
  cmd->add_option("--reward", a->reward.kind, "What judges an answer, as reward.kind")
    ->capture_default_str();
  cmd->add_option("--reward-params", a->reward_params, "Its parameters, as a JSON object");
  cmd->add_option("--limit", a->limit, "Only the first so many questions; 0: all")
    ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  cmd->add_option("--samples", a->samples, "Answers to each question")->check(CLI::Range(1, 4096));
  cmd->add_option("--answers", a->answers, "Write every answer and its judgement there");
  add_sampling_arguments(*cmd, a->sampling);
  cmd->callback([a, &status] { status = evaluator(*a).run(); });
}

} // namespace millrace
