#include "rollout/arithmetic_source.hpp"

#include "rollout/number_words.hpp"
#include "rollout/shuffled_order.hpp"
#include "runtime/error.hpp"
#include "runtime/random.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace millrace {

namespace {

constexpr std::int64_t most_held_out = 1'000'000;
constexpr int most_draws = 10'000;

std::string_view operation_word(char operation) {
  return operation == '+' ? "plus" : operation == '-' ? "minus" : "times";
}

std::int64_t apply(std::int64_t a, char operation, std::int64_t b) {
  return operation == '+' ? a + b : operation == '-' ? a - b : a * b;
}

std::string text_of(double x) {
  auto text = std::to_string(x);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.')
    text.pop_back();
  return text;
}

/// Each of the 2·terms − 1 slots is words with probability `share`.
std::uint32_t draw_form(random_stream& random, std::int32_t terms, double share) {
  std::uint32_t form = 0;
  for (std::int32_t slot = 0; slot < 2 * terms - 1; ++slot)
    form |= static_cast<std::uint32_t>(random.uniform() < share) << slot;
  return form;
}

} // namespace

arithmetic_source::arithmetic_source(arithmetic_settings options, double held_out,
                                     std::uint64_t seed)
  : options_(std::move(options)), held_out_share_(held_out), seed_(seed) {
  check();
  facts_ = 1;
  for (std::int32_t i = 0; i < options_.terms; ++i)
    facts_ *= options_.max_operand + 1;
  for (std::int32_t i = 1; i < options_.terms; ++i)
    facts_ *= static_cast<std::int64_t>(options_.operations.size());
  choose_held_out();
}

void arithmetic_source::check() const {
  const auto& o = options_;
  auto refuse = [](const std::string& option, const std::string& found,
                   const std::string& expected) {
    throw user_error("data." + option + ": found " + found + ", expected " + expected);
  };
  if (o.max_operand < 1 || o.max_operand > 999)
    refuse("arithmetic.max_operand", std::to_string(o.max_operand), "1 to 999");
  if (o.terms < 2 || o.terms > static_cast<std::int32_t>(max_terms))
    refuse("arithmetic.terms", std::to_string(o.terms), "2 to 4");
  const std::set<char> unique(o.operations.begin(), o.operations.end());
  if (unique.empty() || unique.size() != o.operations.size()
      || o.operations.find_first_not_of("+-*") != std::string::npos)
    refuse("arithmetic.operations", "\"" + o.operations + "\"",
           "some of the characters \"+-*\", each once");
  if (!(o.words >= 0 && o.words <= 1))
    refuse("arithmetic.words", text_of(o.words), "a share from 0 to 1");
  if (!(held_out_share_ >= 0 && held_out_share_ <= most_held_out))
    refuse("held_out", text_of(held_out_share_), "a share below 1, or a count up to a million");
  if (o.worked && (o.terms != 2 || o.max_operand > 20))
    refuse("arithmetic.worked", "true with " + std::to_string(o.terms) + " terms up to "
           + std::to_string(o.max_operand), "two terms up to 20, as answers count their way");
}

void arithmetic_source::choose_held_out() {
  const bool mixed = options_.words > 0 && options_.words < 1;
  const auto forms = mixed ? std::int64_t{1} << (2 * options_.terms - 1) : 1;
  // Half may be held out; by fact a quarter, because most take their mirror image with them.
  const auto most = options_.held_out_facts ? facts_ / 4 : facts_ * forms / 2;
  const auto all = static_cast<double>(options_.held_out_facts ? facts_ : facts_ * forms);
  const auto count = static_cast<std::int64_t>(
    held_out_share_ < 1 ? std::floor(held_out_share_ * all) : held_out_share_);
  auto too_many = [&](std::int64_t limit) {
    throw user_error("data.held_out: found " + text_of(held_out_share_) + ", but these tasks have "
                     + std::to_string(facts_ * forms) + " prompts of which at most "
                     + std::to_string(limit) + " can be held out; lower it, or raise "
                     "data.arithmetic.max_operand");
  };
  if (count > std::min(most, most_held_out))
    too_many(std::min(most, most_held_out));
  const shuffled_order order(facts_, seed_ ^ stream_of("arithmetic.held_out"), 0);
  random_stream random(seed_ ^ stream_of("arithmetic.held_out.form"));
  std::unordered_set<std::int64_t> taken;
  for (std::int64_t i = 0; static_cast<std::int64_t>(held_out_.size()) < count; ++i) {
    // Spread over the facts first; where those are used up, by chance.
    int draws = 0;
    task t;
    do {
      if (++draws > most_draws)
        too_many(held_out_size());
      t.fact = i < facts_ && draws == 1
                 ? order(i)
                 : static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(facts_)));
      t.form = draw_form(random, options_.terms, options_.words);
    } while (!allowed(t.fact) || !taken.insert(t.fact * 128 + t.form).second);
    held_out_.push_back(t);
    held_out_keys_.insert(key(t));
  }
}

arithmetic_source::expression arithmetic_source::read(std::int64_t fact) const {
  expression e;
  const auto operands = static_cast<std::int64_t>(options_.max_operand) + 1;
  const auto operations = static_cast<std::int64_t>(options_.operations.size());
  for (std::int32_t i = 0; i < options_.terms; ++i) {
    e.operands[static_cast<std::size_t>(i)] = fact % operands;
    fact /= operands;
  }
  for (std::int32_t i = 0; i + 1 < options_.terms; ++i) {
    e.operations[static_cast<std::size_t>(i)]
      = options_.operations[static_cast<std::size_t>(fact % operations)];
    fact /= operations;
  }
  return e;
}

std::int64_t arithmetic_source::fact_of(const expression& e) const {
  std::int64_t fact = 0;
  for (auto i = options_.terms - 2; i >= 0; --i)
    fact = fact * static_cast<std::int64_t>(options_.operations.size())
           + static_cast<std::int64_t>(
             options_.operations.find(e.operations[static_cast<std::size_t>(i)]));
  for (auto i = options_.terms - 1; i >= 0; --i)
    fact = fact * (options_.max_operand + 1) + e.operands[static_cast<std::size_t>(i)];
  return fact;
}

std::int64_t arithmetic_source::result(const expression& e) const {
  std::int64_t sum = 0;
  char pending = '+';
  auto product = e.operands[0];
  for (std::size_t i = 1; i < static_cast<std::size_t>(options_.terms); ++i) {
    if (e.operations[i - 1] == '*') {
      product *= e.operands[i];
      continue;
    }
    sum = apply(sum, pending, product);
    pending = e.operations[i - 1];
    product = e.operands[i];
  }
  return apply(sum, pending, product);
}

std::int64_t arithmetic_source::key(const task& t) const {
  if (!options_.held_out_facts)
    return t.fact * 128 + t.form;
  auto e = read(t.fact);
  // Swapping operands changes nothing where all operations are the same sum or product.
  const auto terms = static_cast<std::size_t>(options_.terms);
  bool swappable = e.operations[0] != '-';
  for (std::size_t i = 1; i + 1 < terms; ++i)
    swappable = swappable && e.operations[i] == e.operations[0];
  if (swappable)
    for (std::size_t end = terms; end > 1; --end)
      for (std::size_t i = 1; i < end; ++i)
        if (e.operands[i - 1] > e.operands[i])
          std::swap(e.operands[i - 1], e.operands[i]);
  return fact_of(e);
}

bool arithmetic_source::allowed(std::int64_t fact) const {
  return options_.negative || result(read(fact)) >= 0;
}

arithmetic_source::task arithmetic_source::train_task(std::int64_t position) const {
  const shuffled_order order(facts_, seed_ ^ stream_of("arithmetic.train"), position / facts_);
  random_stream random(seed_ ^ stream_of("arithmetic.train.form"),
                       static_cast<std::uint64_t>(position));
  task t;
  t.fact = order(position % facts_);
  for (int draws = 0; draws < most_draws; ++draws) {
    t.form = draw_form(random, options_.terms, options_.words);
    if (allowed(t.fact) && !held_out_keys_.contains(key(t)))
      return t;
    // Another writing of it may do, but not where the fact itself is the trouble.
    if (options_.held_out_facts || draws % 16 == 15 || !allowed(t.fact) || options_.words == 0
        || options_.words == 1)
      t.fact = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(facts_)));
  }
  throw user_error("data.arithmetic: " + std::to_string(most_draws) + " draws gave no task that "
                   "may be trained on; hold out fewer prompts, or allow negative results");
}

arithmetic_source::task arithmetic_source::task_of(const prompt& p) const {
  if (p.id < held_out_ids)
    return train_task(p.id);
  return held_out_.at(static_cast<std::size_t>(p.id - held_out_ids));
}

prompt arithmetic_source::write(const task& t, std::int64_t id) const {
  const auto e = read(t.fact);
  prompt p{id, {}, std::to_string(result(e))};
  for (std::size_t i = 0; i < static_cast<std::size_t>(options_.terms); ++i) {
    if (i > 0) {
      const auto operation = e.operations[i - 1];
      if (((t.form >> (2 * i - 1)) & 1) != 0)
        p.text.append(" ").append(operation_word(operation)).append(" ");
      else
        p.text += operation;
    }
    const auto operand = e.operands[i];
    p.text += ((t.form >> (2 * i)) & 1) != 0 ? number_words(static_cast<int>(operand))
                                             : std::to_string(operand);
  }
  p.text += '=';
  return p;
}

prompt arithmetic_source::at(std::int64_t position) const {
  ensure(position >= 0 && position < held_out_ids,
         [&] { return "prompt at position " + std::to_string(position); });
  return write(train_task(position), position);
}

prompt arithmetic_source::held_out(std::int64_t index) const {
  return write(held_out_.at(static_cast<std::size_t>(index)), held_out_ids + index);
}

std::string arithmetic_source::demonstration(const prompt& p) const {
  const auto e = read(task_of(p).fact);
  const auto a = e.operands[0], b = e.operands[1];
  const auto operation = e.operations[0];
  if (!options_.worked || b == 0)
    return std::to_string(result(e));
  std::string text;
  for (std::int64_t i = 1; i <= b; ++i)
    text.append(i > 1 ? " " : "").append(std::to_string(apply(a, operation, i)));
  return text;
}

std::string arithmetic_source::alphabet() const {
  std::set<char> all{'0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '+', '-', '*', '=', ' '};
  for (int n = 0; n <= 999; ++n)
    for (char c : number_words(n))
      all.insert(c);
  for (char operation : {'+', '-', '*'})
    for (char c : operation_word(operation))
      all.insert(c);
  return {all.begin(), all.end()};
}

std::string arithmetic_source::fingerprint() const {
  const auto& o = options_;
  return "arithmetic to " + std::to_string(o.max_operand) + " " + o.operations + " terms "
         + std::to_string(o.terms) + " words " + text_of(o.words) + " negative "
         + std::to_string(o.negative) + " worked " + std::to_string(o.worked) + " held out "
         + text_of(held_out_share_) + (o.held_out_facts ? " facts" : "") + " seed "
         + std::to_string(seed_);
}

} // namespace millrace
