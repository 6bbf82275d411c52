#pragma once

#include "runtime/config/settings.hpp"
#include "runtime/model/model_config.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace::trainer {

/// The model that model.architecture describes, with so many tokens in its vocabulary.
model::model_config architecture_shape(const settings& s, std::int64_t vocabulary);

/// The model that the settings name, as far as is needed here: of model.path its config.json; a model
/// made from scratch has a vocabulary of its alphabet (or of about a hundred characters, where the
/// prompts decide). Nothing when the folder can't be read.
std::optional<model::model_config> model_shape(const settings& s);

/// One thing that takes memory, and how much of it.
struct memory_item {
  std::string what; ///< "trainer: weights"
  std::string how;  ///< what it depends on: "3.1 M parameters, fp32"
  std::int64_t bytes = 0;
  bool on_device = false; ///< in a CUDA device's memory, else the host's
};

/// Parameters of one tensor-parallel rank of `tp`.
std::int64_t parameters_of(const model::model_config& c, std::int64_t tp = 1);

/// What one layer keeps for the backward pass, and what it needs for a while on top, in bytes per
/// token; of what it keeps, its input. Follows the operations of runtime/model/transformer_ops.cpp: on
/// the CPU the fused ones, on a CUDA device the composed ones, without what pads them.
struct layer_memory {
  std::int64_t kept = 0, passing = 0, input = 0;
};
layer_memory layer_bytes(const model::model_config& c, const trainer_settings& t);

/// The most memory that each rank of the trainer has at a time: one line per thing, largest possible
/// micro-batch.
std::vector<memory_item> trainer_memory(const model::model_config& c, const settings& s);

/// Of a process that runs all of it (`millrace run`): the trainer's rank 0, the weights it publishes,
/// the generators and the engines that evaluate, with their KV caches, the replay buffer at its
/// limit.
std::vector<memory_item> run_memory(const model::model_config& c, const settings& s);

/// In host memory, the most that one generator has at a time.
std::int64_t generator_memory(const model::model_config& c, const settings& s);

/// In host memory, and on CUDA devices.
std::int64_t total(const std::vector<memory_item>& items);
std::int64_t device_total(const std::vector<memory_item>& items);

/// "1.25 GB"
std::string bytes_text(std::int64_t bytes);

/// Of this machine.
std::int64_t physical_memory_bytes();

} // namespace millrace::trainer
