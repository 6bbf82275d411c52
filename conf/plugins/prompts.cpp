// A prompt source: words to be written backwards.
//
//   "plugins": [{"path": "build/libprompts.so"}],
//   "data": {"source": "backwards", "params": {"letters": 3}}, "reward": {"kind": "exact"}

#include <millrace/plugin.hpp>

using namespace millrace::plugin;

namespace {

class backwards final : public prompt_source {
public:
  backwards(const parameters& p, std::uint64_t seed)
    : letters_(p.integer("letters", 3)), held_out_(p.integer("held_out", 100)), seed_(seed) {
    if (letters_ < 1 || letters_ > 12)
      p.refuse("letters", "1 to 12");
  }

  std::int64_t size() const override { return 10000; }
  question at(std::int64_t index) const override { return word(static_cast<std::uint64_t>(index)); }
  std::int64_t held_out_size() const override { return held_out_; }
  question held_out(std::int64_t index) const override {
    return word(static_cast<std::uint64_t>(index) + (std::uint64_t{1} << 40)); // apart from training
  }
  std::string demonstration(const question& q) const override { return q.answer; }
  std::string alphabet() const override { return "abcdefghijklmnopqrstuvwxyz>"; }
  std::string fingerprint() const override {
    return std::to_string(letters_) + " letters, seed " + std::to_string(seed_);
  }

private:
  question word(std::uint64_t key) const {
    question q;
    auto x = (key + 1) * 0x9E3779B97F4A7C15u + seed_;
    for (std::int64_t i = 0; i < letters_; ++i) {
      x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
      q.text += static_cast<char>('a' + (x >> 40) % 26);
    }
    q.answer.assign(q.text.rbegin(), q.text.rend());
    q.text += '>';
    return q;
  }

  std::int64_t letters_, held_out_;
  std::uint64_t seed_;
};

} // namespace

MILLRACE_PLUGIN("backwards", "Words to be written backwards") {
  add.prompt_source<backwards>("backwards", "Random words of `letters` letters");
}
