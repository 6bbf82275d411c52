// What no single option shows. Each rule says which option to change, and why.

#include "runtime/config/config.hpp"

#include <cmath>

namespace millrace {
namespace {

using texts = std::vector<std::string>;

std::string num(double x) {
  auto text = std::to_string(x);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.'))
    text.pop_back();
  return text;
}

void check_model(const settings& s, texts& out) {
  if (!s.model.path.empty())
    return; // the folder's own config.json counts, and is checked when it is loaded
  const auto& a = s.model.architecture;
  const std::string at = "model.architecture.";
  if (a.hidden % a.heads != 0)
    out.push_back(at + "heads: found " + num(a.heads) + ", expected a divisor of hidden, "
                  + num(a.hidden));
  else if (a.hidden / a.heads % 2 != 0)
    out.push_back(at + "heads: found " + num(a.heads) + ", which makes heads of odd width "
                  + num(a.hidden / a.heads) + "; rotary embeddings need an even one");
  if (a.heads % a.kv_heads != 0)
    out.push_back(at + "kv_heads: found " + num(a.kv_heads) + ", expected a divisor of heads, "
                  + num(a.heads));
  if (s.sampling.max_tokens >= a.max_positions)
    out.push_back("sampling.max_tokens: found " + num(s.sampling.max_tokens)
                  + ", expected less than " + at + "max_positions, " + num(a.max_positions)
                  + ": the prompt needs room too");
}

void check_data(const settings& s, texts& out) {
  const auto& d = s.data;
  if (d.source == "jsonl" && d.file.empty())
    out.push_back("data.file: is missing; data.source \"jsonl\" reads it");
  if (d.source == "arithmetic" && !d.file.empty())
    out.push_back("data.file: found \"" + d.file + "\", but data.source \"arithmetic\" reads no "
                  "file; set data.source to \"jsonl\"");
  if (d.prompt_template.find("{question}") == std::string::npos)
    out.push_back("data.template: has no {question}, so that every prompt would be the same");
  if (d.held_out >= 1 && d.held_out != std::trunc(d.held_out))
    out.push_back("data.held_out: found " + num(d.held_out)
                  + ", expected a whole number of prompts, or a fraction below 1");
  if (d.arithmetic.operations.empty()
      || d.arithmetic.operations.find_first_not_of("+-*") != std::string::npos)
    out.push_back("data.arithmetic.operations: found \"" + d.arithmetic.operations
                  + "\", expected some of + - *");
}

void check_stream(const settings& s, texts& out) {
  const auto& r = s.rollout;
  if (r.batch_size % r.group_size != 0)
    out.push_back("rollout.batch_size: found " + num(r.batch_size)
                  + ", expected a multiple of rollout.group_size, " + num(r.group_size));
  const auto least = (std::int64_t(r.eta) + 1) * r.batch_size;
  if (s.replay.capacity > 0 && s.replay.capacity < least)
    out.push_back("replay.capacity: found " + num(s.replay.capacity) + ", expected at least "
                  "(rollout.eta + 1)·rollout.batch_size, " + num(double(least)) + ", or 0 for that");
  if (least > 100'000'000)
    out.push_back("rollout.eta: with rollout.batch_size " + num(r.batch_size) + " it admits "
                  + num(double(least)) + " rollouts, expected at most 100000000");
  if (s.sampling.min_tokens > s.sampling.max_tokens)
    out.push_back("sampling.min_tokens: found " + num(s.sampling.min_tokens)
                  + ", expected at most sampling.max_tokens, " + num(s.sampling.max_tokens));
  if (s.generator.kv_cache_tokens > 0 && s.generator.kv_cache_tokens <= s.sampling.max_tokens)
    out.push_back("generator.kv_cache_tokens: found " + num(double(s.generator.kv_cache_tokens))
                  + ", which doesn't hold one sequence; expected more than sampling.max_tokens, "
                  + num(s.sampling.max_tokens) + ", or 0");
  if (s.deterministic && r.eta > 0)
    out.push_back("deterministic: found true with rollout.eta " + num(r.eta) + "; which version "
                  "samples a token then depends on timing, so it needs rollout.eta 0");
}

void check_training(const settings& s, texts& out) {
  if (s.reward.correct <= s.reward.wrong)
    out.push_back("reward.correct: found " + num(s.reward.correct)
                  + ", expected more than reward.wrong, " + num(s.reward.wrong));
  const auto& kl = s.algorithm.kl;
  if (kl.coefficient > 0 && kl.reference == kl_reference::none)
    out.push_back("algorithm.kl.coefficient: found " + num(kl.coefficient)
                  + " with no reference; set algorithm.kl.reference to \"initial\"");
  if (s.trainer.minibatches > s.rollout.batch_size)
    out.push_back("trainer.minibatches: found " + num(s.trainer.minibatches)
                  + ", expected at most rollout.batch_size, " + num(s.rollout.batch_size));
  if (s.eval.samples > 1 && s.eval.temperature == 0)
    out.push_back("eval.samples: found " + num(s.eval.samples)
                  + " with eval.temperature 0, where they would all be the same");
}

} // namespace

std::vector<std::string> contradictions(const settings& s) {
  texts out;
  check_model(s, out);
  check_data(s, out);
  check_stream(s, out);
  check_training(s, out);
  return out;
}

std::vector<std::string> remarks(const settings& s) {
  texts out;
  if (s.algorithm.old_logits == old_logits_source::recompute && s.trainer.minibatches == 1
      && s.trainer.epochs == 1)
    out.push_back("trainer.minibatches: with one optimiser step per batch, the policy still equals "
                  "the recomputed proximal policy, so that every ratio between them is 1 and "
                  "nothing is ever clipped; 2 or more minibatches or epochs give clipping a meaning");
  if (s.rollout.group_size == 1 && s.algorithm.advantage.name == "grpo")
    out.push_back("rollout.group_size: a group of one has no siblings to compare with, so that "
                  "every advantage is 0");
  if (s.rollout.filter_zero_variance && s.rollout.group_size == 1)
    out.push_back("rollout.filter_zero_variance: with rollout.group_size 1 it filters everything");
  if (s.sampling.temperature == 0 && s.rollout.group_size > 1)
    out.push_back("sampling.temperature: at 0 all answers of a group are the same, and every "
                  "advantage is 0");
  return out;
}

} // namespace millrace
