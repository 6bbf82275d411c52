#pragma once

#include "rollout/prompt_source.hpp"

#include <array>
#include <unordered_set>

namespace millrace {

/// Arithmetic tasks in words and digits that the program makes itself: "seven plus 5=" → "12".
/// Each operand and each operation is written as a word or in digits and signs, at random. An epoch
/// shows as many tasks as there are facts (operands and operations), each in one writing, with
/// others in place of those that are held out; no table of them is kept.
///
/// No held-out prompt is ever trained on in the same writing: "7+5=" may be held out while "seven
/// plus 5=" is trained on. With `held_out_facts` no held-out task is trained on in any writing, nor
/// with its operands swapped where that gives the same result: for operations that can be learned
/// as a rule only (a product of two digits must be learned by heart, so it can't be answered unseen).
///
/// With `worked`, demonstrations count their way to the result: "7+3=" → "8 9 10", "4*3=" → "4 8
/// 12". Rewards look at the last number, so both kinds of answer are right.
class arithmetic_source final : public prompt_source {
public:
  /// \throws user_error when an option is out of its range or too much is held out; `data.…` is
  /// where the options stand in the configuration
  /// \param held_out prompts kept from training: below 1 a share of all, from 1 a count
  arithmetic_source(arithmetic_settings options, double held_out, std::uint64_t seed);

  [[nodiscard]] prompt at(std::int64_t position) const override;
  [[nodiscard]] std::int64_t epoch_size() const override { return facts_; }
  [[nodiscard]] prompt held_out(std::int64_t index) const override;
  [[nodiscard]] std::int64_t held_out_size() const override {
    return static_cast<std::int64_t>(held_out_.size());
  }
  /// The answer, with the steps to it where they are wanted.
  [[nodiscard]] std::string demonstration(const prompt& p) const override;
  /// The same for all options, so that a run can go on with harder tasks.
  [[nodiscard]] std::string alphabet() const override;
  [[nodiscard]] std::string fingerprint() const override;

private:
  static constexpr std::size_t max_terms = 4;
  /// What is asked and how it is written. Bits of `form`, from the first operand on: operand,
  /// operation, operand, …; 1 is words.
  struct task {
    std::int64_t fact = 0;
    std::uint32_t form = 0;
  };
  struct expression {
    std::array<std::int64_t, max_terms> operands{};
    std::array<char, max_terms - 1> operations{};
  };

  void check() const;
  void choose_held_out();
  [[nodiscard]] expression read(std::int64_t fact) const;
  [[nodiscard]] std::int64_t fact_of(const expression& e) const;
  [[nodiscard]] std::int64_t result(const expression& e) const;
  /// Names what must not be in training when this is held out.
  [[nodiscard]] std::int64_t key(const task& t) const;
  [[nodiscard]] bool allowed(std::int64_t fact) const;
  [[nodiscard]] task train_task(std::int64_t position) const;
  [[nodiscard]] task task_of(const prompt& p) const;
  [[nodiscard]] prompt write(const task& t, std::int64_t id) const;

  arithmetic_settings options_;
  double held_out_share_;
  std::uint64_t seed_;
  std::int64_t facts_ = 0;
  std::vector<task> held_out_;
  std::unordered_set<std::int64_t> held_out_keys_;
};

} // namespace millrace
