#include "rollout/prompt_source.hpp"

#include "rollout/arithmetic_source.hpp"
#include "rollout/jsonl_source.hpp"
#include "runtime/config/options.hpp"
#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

namespace millrace {

std::string prompt_source::demonstration(const prompt&) const { return {}; }
std::string prompt_source::alphabet() const { return {}; }

nlohmann::json prompt_source::cursor() const {
  return {{"position", position_}, {"source", fingerprint()}};
}

void prompt_source::seek(const nlohmann::json& cursor) {
  const auto bad = [&](const std::string& what) {
    throw user_error("the saved position in the prompts " + what);
  };
  if (!cursor.is_object() || !cursor.contains("position") || !cursor.contains("source")
      || !cursor["position"].is_number_integer() || !cursor["source"].is_string())
    bad("can't be read: found " + cursor.dump(-1, ' ', false,
                                              nlohmann::json::error_handler_t::replace)
        + ", expected {\"position\": …, \"source\": …}");
  if (cursor["source"] != fingerprint())
    bad("is of other prompts: it was saved with \"" + cursor["source"].get<std::string>()
        + "\", this run has \"" + fingerprint()
        + "\". Resume with the same data, data options and seed, or start a new run");
  const auto position = cursor["position"].get<std::int64_t>();
  if (position < 0 || position >= held_out_ids)
    bad("is " + std::to_string(position) + ", expected a number from 0 on");
  position_ = position;
}

registry<prompt_source_factory>& prompt_sources() {
  static registry<prompt_source_factory> all = [] {
    registry<prompt_source_factory> r("prompt source");
    r.add("arithmetic", "Tasks in words and digits that the program makes itself",
          [](const data_settings& s, std::uint64_t seed) -> std::unique_ptr<prompt_source> {
            return std::make_unique<arithmetic_source>(s.arithmetic, s.held_out, seed);
          });
    r.add("jsonl", "A file of JSON lines",
          [](const data_settings& s, std::uint64_t seed) -> std::unique_ptr<prompt_source> {
            return std::make_unique<jsonl_source>(s, seed);
          });
    return r;
  }();
  return all;
}

std::unique_ptr<prompt_source> make_prompt_source(const data_settings& data, std::uint64_t seed) {
  return prompt_sources().get(data.source, "data.source")(data, seed);
}

} // namespace millrace
