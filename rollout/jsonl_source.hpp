#pragma once

#include "rollout/prompt_source.hpp"

#include <vector>

namespace millrace {

/// Prompts from a file of JSON lines (see each_json_line). The fields are those of the options;
/// with the default names, files of GSM8K (`question`, `answer` with "#### N") and MATH (`problem`,
/// `solution` with \boxed{…}, and `answer` where it has one) are known by their first line.
///
/// The reference answer is what the answer's text marks with "####" or \boxed{…}, and the whole
/// text where it marks nothing; numbers are taken as their text. An empty answer field's name means that
/// there are no answers. The prompt is `prompt_template` with {question} replaced.
///
/// Held out are questions, not lines: a question that stands twice in the file is on one side only.
class jsonl_source final : public prompt_source {
public:
  /// \throws user_error naming file and line when something can't be read as prompts, or when the
  /// options hold out everything
  jsonl_source(const data_settings& options, std::uint64_t seed);

  [[nodiscard]] prompt at(std::int64_t position) const override;
  [[nodiscard]] std::int64_t epoch_size() const override {
    return static_cast<std::int64_t>(train_.size());
  }
  [[nodiscard]] prompt held_out(std::int64_t index) const override;
  [[nodiscard]] std::int64_t held_out_size() const override {
    return static_cast<std::int64_t>(held_out_.size());
  }
  /// The answer's text with its reasoning, as the file has it, but without GSM8K's calculator notes
  /// ("<<48/2=24>>").
  [[nodiscard]] std::string demonstration(const prompt& p) const override;
  [[nodiscard]] std::string alphabet() const override;
  [[nodiscard]] std::string fingerprint() const override;

  /// Which fields were read, for the log: "question" and "answer".
  [[nodiscard]] const std::string& question_field() const { return question_field_; }
  [[nodiscard]] const std::string& answer_field() const { return answer_field_; }

private:
  struct item {
    std::string text;          ///< the prompt, from the template
    std::string answer;        ///< the reference
    std::string demonstration;
  };

  void recognise(const nlohmann::json& first, const data_settings& options);
  [[nodiscard]] item read(const nlohmann::json& object, const std::string& prompt_template,
                          const std::string& where) const;
  void split(double held_out, const std::string& file);
  [[nodiscard]] std::size_t item_at(std::int64_t position) const;

  std::string question_field_, answer_field_;
  std::string reference_field_; ///< holds the answer alone, where the file has such a field too
  std::vector<item> items_;
  std::vector<std::size_t> train_, held_out_; ///< into items_
  bool shuffle_;
  std::uint64_t seed_;
};

} // namespace millrace
