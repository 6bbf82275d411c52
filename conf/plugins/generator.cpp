// A generator back end, as small as can be: the next token depends on the last one only, by the
// model's embedding and head (a bigram model). A real one would hand the weights to its own engine.
//
//   "plugins": [{"path": "build/libgenerator.so"}],
//   "generator": {"backend": {"name": "bigram"}}

#include <millrace/plugin.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <stdexcept>

using namespace millrace::plugin;

namespace {

class bigram final : public generator {
public:
  bigram(const parameters&, const generator_context& c)
    : vocabulary_(static_cast<std::size_t>(c.vocabulary)) {}

  void start(std::uint64_t sequence, std::span<const std::int32_t> tokens, const sampling& how,
             std::uint64_t seed) override {
    running_[sequence] = {tokens.back(), how.temperature, std::mt19937_64(seed)};
  }
  void end(std::uint64_t sequence) override { running_.erase(sequence); }

  std::vector<sampled> step() override {
    std::vector<sampled> out;
    for (auto& [id, s] : running_) {
      out.push_back({id, next(s)});
      s.last = out.back().token.token;
    }
    return out;
  }

  void install(std::span<const weight> weights, bool) override {
    const auto copy = [&](std::string_view name) {
      for (const auto& w : weights)
        if (w.name == name) {
          if (w.type != "f32")
            throw std::runtime_error("bigram takes f32 weights: set generator.dtype to \"fp32\"");
          width_ = static_cast<std::size_t>(w.shape[1]);
          const auto* data = static_cast<const float*>(w.data);
          return std::vector<float>(data, data + vocabulary_ * width_);
        }
      return std::vector<float>();
    };
    embedding_ = copy("model.embed_tokens.weight");
    head_ = copy("lm_head.weight");
    if (head_.empty())
      head_ = embedding_; // tied
  }

private:
  struct state {
    std::int32_t last = 0;
    float temperature = 1;
    std::mt19937_64 random;
  };

  drawn_token next(state& s) const {
    std::vector<double> logits(vocabulary_, 0);
    const auto* from = embedding_.data() + static_cast<std::size_t>(s.last) * width_;
    for (std::size_t v = 0; v < vocabulary_; ++v)
      for (std::size_t i = 0; i < width_; ++i)
        logits[v] += static_cast<double>(from[i]) * head_[v * width_ + i];
    const auto best = std::max_element(logits.begin(), logits.end());
    if (s.temperature <= 0)
      return {static_cast<std::int32_t>(best - logits.begin()), 0};
    const auto top = *best;
    double sum = 0;
    for (auto& l : logits)
      sum += l = std::exp((l - top) / s.temperature);
    auto left = std::uniform_real_distribution<double>(0, sum)(s.random);
    std::size_t chosen = 0;
    while (chosen + 1 < vocabulary_ && (left -= logits[chosen]) >= 0)
      ++chosen;
    return {static_cast<std::int32_t>(chosen), static_cast<float>(std::log(logits[chosen] / sum))};
  }

  std::size_t vocabulary_, width_ = 0;
  std::vector<float> embedding_, head_;
  std::map<std::uint64_t, state> running_;
};

} // namespace

MILLRACE_PLUGIN("bigram", "A generator that looks at the last token only") {
  add.generator<bigram>("bigram", "Embedding times head, nothing between");
}
