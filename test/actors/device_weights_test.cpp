// Published weights on their way into the decoder for devices, here on the CPU device: what they
// become there is what a checkpoint becomes.

#include "runtime/model/device_decoder.hpp"

#include "runtime/model/checkpoint.hpp"
#include "runtime/model/weight_transfer.hpp"
#include "weightsync/local_transport.hpp"
#include "weightsync/publisher.hpp"
#include "weightsync/pull.hpp"

#include <catch2/catch.hpp>

#include <cstring>

using namespace millrace;

namespace {

model::model_config small_config() {
  model::model_config c;
  c.model_type = "qwen3";
  c.vocab_size = 50;
  c.hidden_size = 36;
  c.intermediate_size = 44;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 10;
  c.max_position_embeddings = 64;
  c.qk_norm = true;
  return c;
}

struct tensors {
  std::vector<std::vector<std::byte>> memory;
  std::vector<tensor_view> views;

  tensors(const model::model_config& config, dtype type) {
    for (const auto& p : model::parameter_shapes(config)) {
      tensor_view v{p.name, type, p.shape, nullptr};
      memory.emplace_back(v.bytes());
      v.data = memory.back().data();
      views.push_back(std::move(v));
    }
  }
};

} // namespace

TEST_CASE("published weights become on a device what a checkpoint becomes there") {
  const auto config = small_config();
  for (const auto type : {dtype::f32, dtype::bf16, dtype::f8_e4m3}) {
    const auto on_wire = type == dtype::f32 ? dtype::f32 : dtype::bf16;
    weightsync::local_transport carrier;
    tensors trained(config, dtype::f32), sent(config, on_wire);
    weightsync::publisher_options how;
    how.shard_bytes = 500; // pieces that don't end with a row
    how.wire_type = [&](const weightsync::placement&, dtype) { return on_wire; };
    weightsync::publisher source(carrier, weightsync::replicated(trained.views), how);
    const model::decoder_options size{4, 64, 1, type};
    const auto arrived = model::make_device_decoder(c10::kCPU, config, size);
    const auto expected = model::make_device_decoder(c10::kCPU, config, size);
    weightsync::puller sink(carrier, arrived->staging(),
                            weightsync::replicated(arrived->staging()));
    for (std::int32_t v = 0; v < 3; ++v) {
      model::initialise(config, trained.views, static_cast<std::uint64_t>(v));
      model::transfer_weights(trained.views, sent.views);
      model::transfer_weights(sent.views, expected->staging());
      const auto m = source.publish({v}, trained.views, v);
      REQUIRE(m);
      const auto report = sink.pull(*m, {});
      INFO(report.error);
      REQUIRE(report.ready());
      const auto a = arrived->staging(), b = expected->staging();
      for (std::size_t i = 0; i < a.size(); ++i) {
        INFO(a[i].name << ", version " << v);
        REQUIRE(std::memcmp(a[i].data, b[i].data, a[i].bytes()) == 0);
      }
      arrived->swap();
    }
  }
}
