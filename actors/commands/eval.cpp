#include "actors/commands.hpp"
#include "actors/console.hpp"
#include "actors/interrupt.hpp"
#include "actors/opened_model.hpp"
#include "actors/plugin_registry.hpp"
#include "rollout/answer_scores.hpp"
#include "rollout/controller.hpp"
#include "rollout/prompt_source.hpp"
#include "rollout/reward.hpp"
#include "rollout/tokenized_feed.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/short_forms.hpp"

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace {
namespace {

namespace fs = std::filesystem;

struct eval_arguments {
  engine_arguments engine;
  std::string data, config, reward, reward_params, answers;
  std::optional<std::string> question_field, answer_field, prompt_template, chat;
  sampling_params sampling{.temperature = 0, .max_tokens = 512};
  std::int64_t limit = 0;
  std::int32_t samples = 1;
  std::vector<std::int32_t> pass_at;
  bool json = false;
};

/// Of a run's folder, or one of its checkpoints', the run's configuration; else nothing.
std::string configuration_of(const fs::path& model) {
  auto folder = fs::weakly_canonical(model);
  if (folder.parent_path().filename() == "checkpoints")
    folder = folder.parent_path();
  if (folder.filename() == "checkpoints")
    folder = folder.parent_path();
  const auto file = folder / "config.json";
  return fs::exists(folder / "checkpoints") && fs::exists(file) ? file.string() : std::string();
}

/// How questions are put and answers judged: as the command line says, else the configuration, if
/// there is one.
settings judging(const eval_arguments& a) {
  settings s;
  if (!a.config.empty()) {
    s = load_settings(a.config);
    load_plugins(s);
  }
  s.data.source = "jsonl";
  s.data.file = a.data;
  s.data.held_out = 0;
  s.data.shuffle = false;
  s.data.question_field = a.question_field.value_or(s.data.question_field);
  s.data.answer_field = a.answer_field.value_or(s.data.answer_field);
  s.data.prompt_template = a.prompt_template.value_or(s.data.prompt_template);
  if (a.chat)
    s.data.chat_template = *a.chat == "auto" ? chat_use::automatic : chat_use::none;
  if (!a.reward.empty() && a.reward != s.reward.kind) {
    s.reward.kind = a.reward;
    s.reward.params = nlohmann::json::object(); // they were another's
  }
  if (!a.reward_params.empty()) {
    s.reward.params = nlohmann::json::parse(a.reward_params, nullptr, false);
    if (!s.reward.params.is_object())
      throw user_error("--reward-params: found " + a.reward_params + ", expected a JSON object");
  }
  return s;
}

void check_samples(const eval_arguments& a) {
  if (a.samples > 1 && a.sampling.temperature == 0)
    throw user_error("--samples: found " + std::to_string(a.samples) + " with --temperature 0, where "
                     "all answers to a question are the same; give a --temperature");
  for (const auto k : a.pass_at)
    if (k < 1 || k > a.samples)
      throw user_error("--pass-at: found " + std::to_string(k) + ", expected from 1 to the "
                       + std::to_string(a.samples) + " of --samples");
}

double seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

class evaluator {
public:
  explicit evaluator(const eval_arguments& a)
    : a_(a), screen_(a.json), settings_(judging(a)), judge_(make_reward(settings_.reward)),
      source_(make_prompt_source(settings_.data, a.sampling.seed)), model_(open_model(a.engine)) {
    if (settings_.data.chat_template == chat_use::automatic)
      chat_ = model_.tokens->use_chat();
    if (a_.sampling.stop.empty())
      a_.sampling.stop = settings_.sampling.stop;
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
    while (scores_.answers() < expected_ && interrupts() == 0) {
      for (const auto& r : model_.engine->step())
        judge(r);
      char text[96];
      std::snprintf(text, sizeof text, "%lld/%lld, accuracy %.3f",
                    static_cast<long long>(scores_.answers()), static_cast<long long>(expected_),
                    scores_.accuracy());
      screen_.progress("evaluating", static_cast<double>(scores_.answers()) / all, text);
    }
    screen_.end_progress();
    const auto spent = seconds() - begin;
    if (a_.json)
      std::printf("%s\n", result(spent).dump(2, ' ', false,
                                             nlohmann::json::error_handler_t::replace).c_str());
    else
      report(spent);
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
      sampling.max_tokens
        = static_cast<std::int32_t>(std::min<std::int64_t>(sampling.max_tokens, room));
      for (std::int32_t k = 0; k < a_.samples; ++k)
        model_.engine->submit(
          {blank_rollout({static_cast<std::int64_t>(questions_.size()), k}, p), sampling});
      questions_.push_back(std::move(p.question));
    }
    expected_ = static_cast<std::int64_t>(questions_.size()) * a_.samples;
    if (expected_ == 0)
      throw user_error(a_.data + ": no prompt leaves room for an answer in a context of "
                       + std::to_string(model_.context) + " tokens");
    scores_ = answer_scores(questions_.size(), a_.samples);
  }

  void judge(const rollout& r) {
    const auto index = static_cast<std::size_t>(r.id.group);
    const auto& question = questions_[index];
    const auto v = judge_->judge(question, r.text, r.finish);
    scores_.add(index, r, v);
    if (file_.is_open())
      file_ << nlohmann::ordered_json{{"prompt", question.text}, {"expected", question.answer},
                                      {"sample", r.id.sample}, {"text", r.text},
                                      {"correct", v.correct}, {"reward", v.reward},
                                      {"detail", v.detail}, {"failure", v.failure},
                                      {"tokens", r.generated()}}
                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
            << '\n';
  }

  [[nodiscard]] double tokens_per_s(double spent) const {
    return spent > 0 ? static_cast<double>(scores_.tokens()) / spent : 0;
  }

  void report(double spent) {
    const auto row = [this](const char* name, const char* form, auto... values) {
      screen_.line(printed("%-10s ", name) + printed(form, values...));
    };
    row("accuracy", "%.4f  (%lld of %lld answers)", scores_.accuracy(),
        static_cast<long long>(scores_.correct()), static_cast<long long>(scores_.answers()));
    for (const auto k : a_.pass_at)
      row(("pass@" + std::to_string(k)).c_str(), "%.4f  (%lld questions, %d answers to each)",
          scores_.pass_at(k), static_cast<long long>(scores_.complete()), a_.samples);
    row("reward", "%.4f  (%s%s%s)", scores_.reward(), settings_.reward.kind.c_str(),
        a_.config.empty() ? "" : ", by ", a_.config.c_str());
    row("length", "%.1f tokens, %.1f%% truncated", scores_.length(), 100 * scores_.truncated());
    row("speed", "%.1f tokens/s", tokens_per_s(spent));
    if (passed_over_ > 0)
      screen_.line(std::to_string(passed_over_) + " prompts left no room for an answer, and were "
                   "passed over");
    if (scores_.failed() > 0)
      screen_.line(std::to_string(scores_.failed()) + " answers could not be judged, and count as "
                   "wrong; the last: " + scores_.last_failure());
  }

  [[nodiscard]] nlohmann::ordered_json result(double spent) const {
    auto pass = nlohmann::ordered_json::object();
    for (const auto k : a_.pass_at)
      pass[std::to_string(k)] = scores_.pass_at(k);
    return {{"model", model_.folder.string()}, {"data", a_.data},
            {"reward_kind", settings_.reward.kind}, {"chat_template", chat_},
            {"config", a_.config}, {"questions", questions_.size()}, {"passed_over", passed_over_},
            {"samples", a_.samples},
            {"complete_questions", scores_.complete()}, {"answers", scores_.answers()},
            {"correct", scores_.correct()}, {"accuracy", scores_.accuracy()}, {"pass_at", pass},
            {"reward", scores_.reward()}, {"length", scores_.length()},
            {"truncated", scores_.truncated()}, {"failed", scores_.failed()},
            {"last_failure", scores_.last_failure()}, {"seconds", spent},
            {"tokens_per_s", tokens_per_s(spent)}};
  }

  eval_arguments a_;
  console screen_;
  settings settings_;
  std::unique_ptr<reward> judge_;
  std::unique_ptr<prompt_source> source_;
  opened_model model_;
  bool chat_ = false; ///< questions go through the model's chat template
  std::vector<prompt> questions_;
  std::ofstream file_;
  std::int64_t expected_ = 0, passed_over_ = 0;
  answer_scores scores_{0, 0};
};

} // namespace

void add_eval_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("eval", "Measure a model's accuracy on a file of questions");
  auto a = std::make_shared<eval_arguments>();
  add_engine_arguments(*cmd, a->engine);
  cmd->add_option("data", a->data, "JSON lines, as for data.file")->required();
  cmd->add_option("--config", a->config, "Configuration whose reward, plugins, stop strings and "
                                         "fields of data hold where no option says otherwise "
                                         "(default: of a run's folder its own; none)");
  cmd->add_option("--question-field", a->question_field, "As data.question_field");
  cmd->add_option("--answer-field", a->answer_field, "As data.answer_field");
  cmd->add_option("--template", a->prompt_template, "What the model reads, as data.template: "
                                                    "{question} is replaced");
  cmd->add_option("--chat", a->chat, "auto: through the model's chat template, where it has one; "
                                     "none")->check(CLI::IsMember({"auto", "none"}));
  cmd->add_option("--reward", a->reward, "What judges an answer, as reward.kind: built in, or of the "
                                         "configuration's plugins");
  cmd->add_option("--reward-params", a->reward_params, "Its parameters, as a JSON object");
  cmd->add_option("--limit", a->limit, "Only the first so many questions; 0: all")
    ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  cmd->add_option("--samples", a->samples, "Answers to each question")->check(CLI::Range(1, 4096));
  cmd->add_option("--pass-at", a->pass_at, "Tell pass@k, by the unbiased estimate from all "
                                           "--samples: k, or several (1,8)")
    ->allow_extra_args(false)
    ->delimiter(',');
  cmd->add_flag("--json", a->json, "Tell the result as one JSON object");
  cmd->add_option("--answers", a->answers, "Write every answer and its judgement there");
  add_sampling_arguments(*cmd, a->sampling);
  cmd->callback([a, &status] {
    check_samples(*a);
    if (a->config.empty())
      a->config = configuration_of(a->engine.model);
    else if (a->config == "none")
      a->config.clear();
    status = evaluator(*a).run();
  });
}

} // namespace millrace
