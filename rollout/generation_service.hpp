#pragma once

#include "rollout/engine.hpp"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace millrace::generation {

/// What has come of one answer since the last update.
struct answer_update {
  std::int32_t index = 0; ///< of n
  std::vector<std::int32_t> tokens;
  std::vector<float> logp; ///< of these tokens, under the distribution sampled from
  /// By token, where asked for: the likeliest ones of that distribution.
  std::vector<std::vector<likely_token>> likeliest;
  version youngest = no_version; ///< of the weights that sampled the answer so far
  finish_reason finish = finish_reason::none;
  std::string text;  ///< the whole answer's, when finished
  std::string error; ///< why there will be no answer
};

/// An engine that many callers share: a thread of its own steps it, all that is asked at a time
/// runs in one batch, and callers wait for updates. What is beyond `max_waiting` is refused.
class generation_service {
  struct call;

public:
  struct limits {
    std::size_t max_waiting = 256; ///< answers that run or wait, at most
  };
  /// `e` has its first weights.
  generation_service(std::unique_ptr<engine> e, limits l);
  /// Cancels all that is not finished.
  ~generation_service();
  generation_service(const generation_service&) = delete;
  generation_service& operator=(const generation_service&) = delete;

  /// What a caller holds; cancels what is not finished when it goes.
  class ticket {
  public:
    /// Waits for the next update, `seconds` at most; nothing when none came.
    std::optional<answer_update> next(double seconds);
    ticket(ticket&&) noexcept = default;
    ticket& operator=(ticket&&) = delete;
    ~ticket();

  private:
    friend class generation_service;
    ticket(generation_service& service, std::shared_ptr<call> c)
      : service_(&service), call_(std::move(c)) {}
    generation_service* service_;
    std::shared_ptr<call> call_;
  };

  /// Starts n answers to one prompt. With `stream` tokens come as they are sampled, else all at
  /// once. `likeliest`: so many likely tokens are told of each position. Nothing when the queue is
  /// full.
  std::optional<ticket> start(std::vector<std::int32_t> prompt, const sampling_params& sampling,
                              std::int32_t n, bool stream, std::size_t likeliest = 0);

  /// Fills engine::staging()'s buffers with new weights, or throws.
  using weight_loader = std::function<void(const std::vector<tensor_view>&)>;
  /// Takes these weights at a token boundary; running answers go on under them. Throws what `load`
  /// does, and then nothing has changed. Returns the new version.
  version reload(const weight_loader& load);

  [[nodiscard]] engine_statistics statistics();
  [[nodiscard]] std::size_t outstanding();

private:
  struct pending {
    generation_task task;
    std::shared_ptr<call> owner;
  };

  void run();
  void admit();
  void deliver(const rollout& r, bool finished);
  void report_progress();
  void withdraw(const std::shared_ptr<call>& c);

  std::unique_ptr<engine> engine_;
  limits limits_;
  std::mutex mutex_; ///< of all below; the engine belongs to the thread
  std::condition_variable wake_;
  std::deque<pending> incoming_;
  std::vector<std::shared_ptr<call>> cancelled_;
  std::map<std::int64_t, std::shared_ptr<call>> calls_; ///< by group
  std::size_t outstanding_ = 0;
  std::int64_t next_group_ = 0;
  std::function<void()> between_steps_; ///< an installation that waits for a token boundary
  engine_statistics statistics_;
  bool stopping_ = false;
  std::mutex reload_;
  std::thread thread_;
};

} // namespace millrace::generation
