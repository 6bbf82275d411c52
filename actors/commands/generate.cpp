#include "actors/commands.hpp"
#include "actors/interrupt.hpp"
#include "actors/number_between.hpp"
#include "actors/opened_model.hpp"
#include "rollout/generation_service.hpp"
#include "runtime/error.hpp"
#include "runtime/model/answer_text.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>

namespace millrace {
namespace {

struct generate_arguments {
  engine_arguments engine;
  std::vector<std::string> prompts;
  sampling_params sampling{.temperature = 0, .max_tokens = 256};
  std::int32_t n = 1;
  bool chat = false;
  bool json = false;
};

double seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

void show(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// One answer as it comes.
std::int64_t follow_one(generation::generation_service::ticket& t, const model::tokenizer& tokens,
                        const sampling_params& sampling) {
  model::answer_text text(tokens, sampling.stop);
  std::int64_t count = 0;
  while (interrupts() == 0)
    if (const auto u = t.next(0.2)) {
      if (!u->error.empty())
        throw user_error(u->error);
      for (const auto token : u->tokens)
        show(text.add(token, ++count >= sampling.min_tokens));
      if (u->finish != finish_reason::none)
        break;
    }
  show(text.finish() + "\n");
  return count;
}

/// All answers to a prompt, each when it is finished.
std::int64_t follow_all(generation::generation_service::ticket& t, const generate_arguments& a,
                        std::size_t prompt) {
  std::int64_t count = 0;
  for (std::int32_t open = a.n; open > 0 && interrupts() == 0;) {
    const auto u = t.next(0.2);
    if (!u)
      continue;
    if (!u->error.empty())
      throw user_error(u->error);
    count += static_cast<std::int64_t>(u->tokens.size());
    --open;
    if (a.json)
      show(nlohmann::ordered_json{
             {"prompt", a.prompts[prompt]}, {"sample", u->index}, {"text", u->text},
             {"finish", u->finish == finish_reason::length ? "length" : "stop"},
             {"tokens", u->tokens}, {"logp", u->logp}}
             .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
           + "\n");
    else
      show("--- prompt " + std::to_string(prompt + 1) + ", answer " + std::to_string(u->index + 1)
           + "\n" + u->text + "\n");
  }
  return count;
}

int generate(generate_arguments a) {
  for (auto& p : a.prompts)
    if (p == "-") {
      p.assign(std::istreambuf_iterator<char>(std::cin), {});
      if (p.ends_with('\n')) // the line's end, which is not part of it
        p.pop_back();
    }
  auto m = open_model(a.engine);
  if (a.chat && !m.tokens->use_chat())
    throw user_error("--chat: " + a.engine.model + " has no chat template");
  std::vector<std::vector<std::int32_t>> prompts;
  for (const auto& p : a.prompts)
    prompts.push_back(m.tokens->encode_prompt(p));
  for (const auto& p : prompts)
    if (static_cast<std::int64_t>(p.size()) >= m.context)
      throw user_error("--prompt: it has " + std::to_string(p.size())
                       + " tokens, and the model's context is " + std::to_string(m.context));
  note_interrupts();
  generation::generation_service service(
    std::move(m.engine), {prompts.size() * static_cast<std::size_t>(a.n)});
  const bool stream = prompts.size() == 1 && a.n == 1 && !a.json;
  const auto begin = seconds();
  std::vector<generation::generation_service::ticket> tickets;
  for (auto& p : prompts)
    tickets.push_back(*service.start(std::move(p), a.sampling, a.n, stream));
  std::int64_t count = 0;
  for (std::size_t i = 0; i < tickets.size() && interrupts() == 0; ++i)
    count += stream ? follow_one(tickets[i], *m.tokens, a.sampling) : follow_all(tickets[i], a, i);
  const auto spent = seconds() - begin;
  tickets.clear();
  std::fprintf(stderr, "%lld tokens in %.1f s, %.1f a second\n", static_cast<long long>(count),
               spent, spent > 0 ? static_cast<double>(count) / spent : 0.0);
  return interrupts() > 0 ? 130 : 0;
}

} // namespace

void add_sampling_arguments(CLI::App& command, sampling_params& s) {
  command.add_option("--max-tokens", s.max_tokens, "Tokens of an answer, at most")
    ->check(CLI::Range(1, 1 << 24))->capture_default_str();
  command.add_option("--temperature", s.temperature, "Divides the logits; 0: the likeliest token")
    ->check(number_between(0, 100))->capture_default_str();
  command.add_option("--top-p", s.top_p, "The likeliest tokens with this sum; 1: off")
    ->check(number_between(1e-6, 1));
  command.add_option("--top-k", s.top_k, "The k likeliest tokens; 0: off")
    ->check(CLI::Range(0, 1 << 24));
  command.add_option("--min-p", s.min_p, "Tokens at least this likely, relative to the best")
    ->check(number_between(0, 0.999999));
  command.add_option("--seed", s.seed, "Of the random draws")->check(whole_number());
  command.add_option("--stop", s.stop, "A string that ends an answer; may be repeated")
    ->allow_extra_args(false);
}

void add_generate_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("generate", "Answer prompts with a model");
  auto a = std::make_shared<generate_arguments>();
  add_engine_arguments(*cmd, a->engine);
  cmd->add_option("--prompt,-p", a->prompts, "A prompt; may be repeated; -: the standard input")
    ->required()->allow_extra_args(false);
  cmd->add_option("-n,--n", a->n, "Answers to each prompt")->check(CLI::Range(1, 4096));
  add_sampling_arguments(*cmd, a->sampling);
  cmd->add_flag("--chat", a->chat, "Put the prompt as a user's message, by the chat template");
  cmd->add_flag("--json", a->json, "One JSON object a line, with tokens and log-probs");
  cmd->callback([a, &status] { status = generate(*a); });
}

} // namespace millrace
