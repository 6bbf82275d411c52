#include "rollout/plugin_source.hpp"

#include "rollout/shuffled_order.hpp"
#include "runtime/config/settings.hpp"
#include "runtime/error.hpp"
#include "runtime/plugins/json_parameters.hpp"
#include "runtime/random.hpp"

namespace millrace {

namespace {

class plugin_source final : public prompt_source {
public:
  plugin_source(plugins::origin from, std::unique_ptr<plugin::prompt_source> source, bool shuffle,
                std::uint64_t seed)
    : from_(std::move(from)), source_(std::move(source)), shuffle_(shuffle), seed_(seed) {
    size_ = call("size()", [&] { return source_->size(); });
    held_out_size_ = call("held_out_size()", [&] { return source_->held_out_size(); });
    if (size_ < 1 || held_out_size_ < 0 || size_ >= held_out_ids)
      plugins::blame(from_, "size()", "found " + std::to_string(size_) + " prompts for training and "
                                        + std::to_string(held_out_size_)
                                        + " held out, expected at least 1 and 0");
  }

  [[nodiscard]] prompt at(std::int64_t position) const override {
    return checked(position, call("at()", [&] { return source_->at(index_of(position)); }));
  }
  [[nodiscard]] std::int64_t epoch_size() const override { return size_; }
  [[nodiscard]] prompt held_out(std::int64_t index) const override {
    return checked(held_out_ids + index,
                   call("held_out()", [&] { return source_->held_out(index); }));
  }
  [[nodiscard]] std::int64_t held_out_size() const override { return held_out_size_; }
  [[nodiscard]] std::string demonstration(const prompt& p) const override {
    return call("demonstration()",
                [&] { return source_->demonstration({p.id, p.text, p.answer}); });
  }
  [[nodiscard]] std::string alphabet() const override {
    return call("alphabet()", [&] { return source_->alphabet(); });
  }
  [[nodiscard]] std::string fingerprint() const override {
    return from_.name + " " + call("fingerprint()", [&] { return source_->fingerprint(); })
           + (shuffle_ ? " shuffled" : "") + " seed " + std::to_string(seed_);
  }

private:
  template <class Call>
  auto call(const char* method, Call&& c) const -> decltype(c()) {
    return plugins::guarded(from_, std::string(method) + " threw", std::forward<Call>(c));
  }
  [[nodiscard]] std::int64_t index_of(std::int64_t position) const {
    ensure(position >= 0, [&] { return "prompt at position " + std::to_string(position); });
    const auto index = position % size_;
    return shuffle_ ? shuffled_order(size_, seed_ ^ stream_of("plugin.train"),
                                     position / size_)(index)
                    : index;
  }
  [[nodiscard]] prompt checked(std::int64_t id, plugin::question q) const {
    if (q.text.empty())
      plugins::blame(from_, "at()", "gave an empty prompt");
    return {id, std::move(q.text), std::move(q.answer)};
  }

  plugins::origin from_;
  std::unique_ptr<plugin::prompt_source> source_;
  bool shuffle_;
  std::uint64_t seed_;
  std::int64_t size_ = 0, held_out_size_ = 0;
};

} // namespace

void add_plugin_sources(const plugins::loaded_plugin& from) {
  for (const auto& [name, r] : from.prompt_sources)
    prompt_sources().add(
      name, r.help,
      [r](const data_settings& s, std::uint64_t seed) -> std::unique_ptr<prompt_source> {
        return std::make_unique<plugin_source>(
          r.from, plugins::make(r, s.params, "data.params", seed), s.shuffle, seed);
      });
}

} // namespace millrace
