#pragma once

#include "runtime/config/settings.hpp"
#include "runtime/messages.hpp"
#include "runtime/registry.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace millrace {

/// Where prompts come from: an endless training stream and a finite held-out set that is disjoint
/// from it. Both depend on nothing but the source's options, its data and its seed.
///
/// A prompt's id is its position in the training stream (0, 1, 2, …; it goes on over epochs), or
/// held_out_ids + index for a held-out prompt, so it names the prompt for good and is a fresh key
/// for random streams each time that the same question comes round again.
class prompt_source {
public:
  /// Ids of held-out prompts start here; exact in a double, so JSON readers keep it.
  static constexpr std::int64_t held_out_ids = std::int64_t{1} << 48;

  virtual ~prompt_source() = default;

  /// The prompt at a position of the training stream, any position from 0 on: a pure function.
  [[nodiscard]] virtual prompt at(std::int64_t position) const = 0;

  /// Prompts per epoch. Each epoch has an order of its own, drawn from the seed.
  [[nodiscard]] virtual std::int64_t epoch_size() const = 0;

  /// The held-out prompt `index`, below held_out_size().
  [[nodiscard]] virtual prompt held_out(std::int64_t index) const = 0;
  [[nodiscard]] virtual std::int64_t held_out_size() const = 0;

  /// A text that answers the prompt well, for supervised warm-up; without an end-of-text token.
  /// Empty where the source knows none.
  [[nodiscard]] virtual std::string demonstration(const prompt& p) const;

  /// Every character that prompts and demonstrations are made of, each once: what a character
  /// tokenizer needs. Empty where the source can't know.
  [[nodiscard]] virtual std::string alphabet() const;

  /// Names data, options and seed: a cursor fits only the source that it was taken from.
  [[nodiscard]] virtual std::string fingerprint() const = 0;

  /// The next training prompt; there always is one.
  prompt next() { return at(position_++); }
  [[nodiscard]] std::int64_t position() const { return position_; }
  [[nodiscard]] std::int64_t epoch() const { return position_ / epoch_size(); }

  /// Where the training stream stands, to be kept in a checkpoint.
  [[nodiscard]] nlohmann::json cursor() const;
  /// Goes on from a saved cursor. \throws user_error when it is not one, or is of other data
  void seek(const nlohmann::json& cursor);

private:
  std::int64_t position_ = 0;
};

/// Makes a source from the section `data` and the run's seed.
using prompt_source_factory
  = std::function<std::unique_ptr<prompt_source>(const data_settings&, std::uint64_t seed)>;

/// All sources by name: "arithmetic" and "jsonl", and those of plugins, which are added before any
/// is made.
[[nodiscard]] registry<prompt_source_factory>& prompt_sources();

/// The source that `data.source` names.
/// \throws user_error for a name that there isn't, and what the source itself throws
[[nodiscard]] std::unique_ptr<prompt_source> make_prompt_source(const data_settings& data,
                                                                std::uint64_t seed);

} // namespace millrace
