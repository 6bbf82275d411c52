#include "test/actors/fakes.hpp"

#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <cstring>

namespace millrace::simulation {

fed_prompt fake_feed::next() {
  auto id = next_++;
  return {{id, std::to_string(id), std::to_string(id)}, {1, 2, 3}};
}

nlohmann::json fake_feed::cursor() const {
  return next_;
}

void fake_feed::seek(const nlohmann::json& cursor) {
  next_ = cursor.get<std::int64_t>();
}

fake_engine::fake_engine(std::uint64_t seed, double mean_length, std::size_t max_batch)
  : random_(seed), mean_length_(mean_length), max_batch_(max_batch) {
}

void fake_engine::submit(generation_task task) {
  ensure(!tasks_.contains(task.so_far.id), "a rollout was submitted twice");
  auto length = 1 + static_cast<std::int32_t>(
                  std::exponential_distribution<>(1 / mean_length_)(random_));
  auto id = task.so_far.id;
  tasks_.emplace(id, running_task{std::move(task), length});
}

bool fake_engine::cancel(rollout_id id) {
  return tasks_.erase(id) > 0;
}

std::vector<rollout> fake_engine::step() {
  std::vector<rollout> done;
  std::size_t rows = 0;
  for (auto it = tasks_.begin(); it != tasks_.end() && rows < max_batch_; ++rows) {
    auto& r = it->second.task.so_far;
    r.tokens.push_back(r.generated());
    r.behaviour_logp.push_back(-0.5F);
    r.versions.push_back(current_.value);
    ++statistics_.sampled_tokens;
    if (r.generated() < it->second.length && r.generated() < it->second.task.sampling.max_tokens) {
      ++it;
      continue;
    }
    r.finish = finish_reason::stop;
    r.text = std::to_string(r.generated());
    done.push_back(std::move(r));
    it = tasks_.erase(it);
  }
  return done;
}

std::vector<rollout> fake_engine::drain() {
  auto out = partials();
  tasks_.clear();
  return out;
}

std::vector<rollout> fake_engine::partials() const {
  std::vector<rollout> out;
  for (const auto& [id, t] : tasks_)
    out.push_back(t.task.so_far);
  return out;
}

std::vector<tensor_view> fake_engine::staging() {
  return {{"words", dtype::i32, {8}, reinterpret_cast<std::byte*>(staged_.data())}};
}

swap_report fake_engine::install(version v) {
  ensure(v > current_, "a generator's version went back");
  for (auto w : staged_)
    ensure(w == v.value, "torn weights: a word of v" + std::to_string(w) + " in " + to_string(v));
  auto from = std::exchange(current_, v);
  return {.from = from, .to = v, .running = static_cast<std::int64_t>(tasks_.size())};
}

fake_intake::fake_intake(std::shared_ptr<fake_memory> memory, std::vector<tensor_view> staging,
                         std::function<bool()> fault)
  : memory_(std::move(memory)), staging_(std::move(staging)), fault_(std::move(fault)) {
}

intake_report fake_intake::pull(const std::string& manifest, std::function<void()>) {
  auto it = memory_->words.find(std::stoi(manifest));
  if (it == memory_->words.end())
    return {false, "the version is gone"};
  auto words = it->second;
  auto cut = fault_();
  std::memcpy(staging_[0].data, words.data(), cut ? sizeof words / 2 : sizeof words);
  return {!cut, cut ? "cut" : "", static_cast<std::int64_t>(sizeof words)};
}

verdict fake_reward::judge(const prompt&, std::string_view answer, finish_reason) const {
  auto even = !answer.empty() && (answer.back() - '0') % 2 == 0;
  return {even ? 1.0F : 0.0F, even};
}

std::int64_t batch_checker::check(const train_batch& batch) {
  std::int64_t rollouts = 0, tokens = 0;
  for (const auto& g : batch.groups)
    for (const auto& r : g.rollouts) {
      ++rollouts;
      auto what = "rollout " + to_string(r.id) + " at " + to_string(batch.training_from);
      ensure(seen_.insert(r.id).second, what + " is trained twice");
      ensure(r.tokens.size() == r.versions.size() && r.tokens.size() == r.behaviour_logp.size(),
             what + " has arrays of unequal length");
      ensure(r.prompt_id == g.question.id, what + " belongs to another prompt");
      std::int32_t last = -1;
      for (std::size_t t = 0; t < r.tokens.size(); ++t) {
        auto v = r.versions[t];
        if (v < 0)
          continue;
        ++tokens;
        ensure(static_cast<std::int32_t>(t) >= r.prompt_length, what + " trains a prompt token");
        ensure(v >= last, what + " has versions that go back");
        last = v;
        auto s = staleness(batch.training_from, {v});
        ensure(s >= 0 && s <= eta_, what + " has staleness " + std::to_string(s));
        staleness_max_ = std::max(staleness_max_, s);
      }
    }
  ensure(rollouts == batch_size_, "a batch of " + std::to_string(rollouts));
  return tokens;
}

} // namespace millrace::simulation
