// millrace-generate-probe: the generator and the trainer's forward pass, driven by lines of JSON on
// standard input, one answer a line. For bench/peers/generate.sh and bench/gpu/generate.sh, which do
// the same in other engines and compare.

#include "rollout/engine.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/cpu_decoder.hpp"
#include "runtime/model/device_decoder.hpp"
#include "runtime/model/kv_cache.hpp"
#include "runtime/model/torch_device.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/model/weight_transfer.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <fstream>
#include <iostream>
#include <malloc.h>

namespace millrace::bench {
namespace {

using nlohmann::json;
using token_list = std::vector<std::int32_t>;

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

class probe {
public:
  json answer(const json& ask) {
    const auto op = ask.at("op").get<std::string>();
    if (op == "load")
      return load(ask);
    if (op == "generate")
      return generate(ask);
    if (op == "logits")
      return logits(ask);
    if (op == "trainer")
      return trainer(ask);
    return {{"error", "no operation is called " + op}};
  }

private:
  /// "cpu": the CPU's decoder; "cuda": that for devices, on the first GPU; "libtorch": the same on the
  /// CPU.
  static model::decoder_factory decoders(const std::string& device) {
    if (device == "cpu")
      return [](const model::model_config& c, const model::decoder_options& o) {
        return std::make_unique<model::cpu_decoder>(c, o.blocks, o.max_context, o.threads,
                                                    o.weights);
      };
    return model::decoders_on(model::torch_device(
      device == "cuda" ? compute_device::cuda : compute_device::cpu, 0, "device"));
  }

  static dtype type_named(const std::string& name) {
    return name == "int8" ? dtype::i8 : name == "fp8" ? dtype::f8_e4m3
           : name == "bf16" ? dtype::bf16 : dtype::f32;
  }

  /// {"model", "device", "dtype", "threads", "batch", "context", "prefill"}: the last is how many
  /// prompt tokens a step computes, all that will be asked for where decoding is timed.
  json load(const json& ask) {
    folder_ = ask.at("model").get<std::string>();
    threads_ = ask.value("threads", 2);
    config_ = model::read_config(folder_);
    generation::engine_options o;
    o.max_batch = ask.value("batch", 32);
    o.max_context = ask.value("context", 512);
    o.prefill_tokens = ask.value("prefill", o.prefill_tokens);
    o.threads = threads_;
    o.stop_tokens = {-1}; // answers run to their full length
    o.weights = type_named(ask.value("dtype", std::string("fp32")));
    o.decoder = decoders_ = decoders(ask.value("device", std::string("cpu")));
    engine_.reset(); // its memory may be needed
    engine_ = generation::make_engine(o, config_, nullptr);
    const auto begin = now();
    model::load_weights(folder_, engine_->staging());
    engine_->install({0});
    return {{"seconds", now() - begin}};
  }

  generation_task task(std::int64_t id, token_list tokens, const json& ask) const {
    generation_task t;
    auto& r = t.so_far;
    r.id = {id, 0};
    r.prompt_id = id;
    r.prompt_length = static_cast<std::int32_t>(tokens.size());
    r.tokens = std::move(tokens);
    r.behaviour_logp.assign(r.tokens.size(), 0);
    r.versions.assign(r.tokens.size(), -1);
    t.sampling.temperature = ask.value("temperature", 0.0F);
    t.sampling.max_tokens = ask.at("max_tokens").get<std::int32_t>();
    t.sampling.seed = 1;
    return t;
  }

  /// {"prompts": [[id]], "max_tokens", "temperature", "swap_at": [step]}: at those steps the same
  /// weights come again as the next version. Decoding time is that after the first step.
  json generate(const json& ask) {
    const auto prompts = ask.at("prompts").get<std::vector<token_list>>();
    for (std::size_t i = 0; i < prompts.size(); ++i)
      engine_->submit(task(static_cast<std::int64_t>(i), prompts[i], ask));
    const auto swaps = ask.value("swap_at", std::vector<int>());
    json tokens = json::array(), logp = json::array();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      tokens.push_back(nullptr);
      logp.push_back(nullptr);
    }
    json pauses = json::array();
    const auto begin = now();
    auto first = begin;
    std::int64_t decoded = 0;
    for (int step = 0; engine_->running() + engine_->waiting() > 0; ++step) {
      if (std::find(swaps.begin(), swaps.end(), step) != swaps.end()) {
        model::load_weights(folder_, engine_->staging());
        const auto report = engine_->install(engine_->current().next());
        pauses.push_back({{"pause_s", report.pause_s}, {"prefill_s", report.prefill_s}});
      }
      const auto before = engine_->statistics().sampled_tokens;
      for (auto& r : engine_->step()) {
        tokens[static_cast<std::size_t>(r.id.group)] = r.tokens;
        logp[static_cast<std::size_t>(r.id.group)] = r.behaviour_logp;
      }
      if (decoded == 0 && engine_->statistics().sampled_tokens > 0 && step == 0)
        first = now();
      else
        decoded += engine_->statistics().sampled_tokens - before;
    }
    const auto end = now();
    return {{"tokens", tokens}, {"logp", logp}, {"seconds", end - begin},
            {"decode_s", end - first}, {"decoded", decoded}, {"swaps", pauses}};
  }

  /// {"tokens": [id], "file"}: writes fp32 logits of every position, computed token by token where the
  /// last "load" said, in fp32.
  json logits(const json& ask) {
    const auto tokens = ask.at("tokens").get<token_list>();
    const auto length = static_cast<std::int32_t>(tokens.size());
    const auto d = decoders_(config_, {model::blocks_for(length), length, threads_, dtype::f32});
    model::load_weights(folder_, d->staging());
    d->swap();
    token_list blocks;
    for (std::int32_t b = 0; b < model::blocks_for(length); ++b)
      blocks.push_back(b);
    std::ofstream out(ask.at("file").get<std::string>(), std::ios::binary);
    for (std::int32_t i = 0; i < length; ++i) {
      const model::token_run run{std::span(tokens).subspan(static_cast<std::size_t>(i), 1), i,
                                 blocks.data(), true};
      d->forward({&run, 1});
      out.write(reinterpret_cast<const char*>(d->logits(0)), config_.vocab_size * 4);
    }
    return {{"written", length}};
  }

  /// {"sequences": [[id]], "temperature"}: each token's log-prob under the trainer's forward pass.
  json trainer(const json& ask) {
    at::set_num_threads(threads_);
    const c10::InferenceMode guard;
    if (!trainer_) {
      trainer_ = std::make_unique<model::transformer>(config_);
      model::load_checkpoint(folder_, trainer_->views());
    }
    json all = json::array();
    const double temperature = ask.value("temperature", 1.0);
    for (const auto& sequence : ask.at("sequences")) {
      const auto tokens = sequence.get<token_list>();
      const auto logp = at::log_softmax(
        trainer_->logits(model::pack({tokens})) / temperature, -1).contiguous();
      std::vector<float> picked{0};
      for (std::size_t i = 1; i < tokens.size(); ++i)
        picked.push_back(logp.const_data_ptr<float>()[static_cast<std::int64_t>(i - 1)
                                                        * config_.vocab_size + tokens[i]]);
      all.push_back(picked);
    }
    return {{"logp", all}};
  }

  std::string folder_;
  int threads_ = 2;
  model::model_config config_;
  model::decoder_factory decoders_;
  std::unique_ptr<generation::engine> engine_;
  std::unique_ptr<model::transformer> trainer_;
};

} // namespace
} // namespace millrace::bench

int main() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  millrace::bench::probe probe;
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::json reply;
    try {
      reply = probe.answer(nlohmann::json::parse(line));
    } catch (const std::exception& e) {
      reply = {{"error", e.what()}};
    }
    std::cout << reply.dump() << std::endl;
  }
}
