#pragma once

#include "runtime/model/model_config.hpp"
#include "runtime/model/tokenizer.hpp"
#include "runtime/tensor_view.hpp"

#include <filesystem>
#include <vector>

namespace millrace::model {

/// Writes a Hugging Face model folder: model.safetensors, config.json and, when given, the
/// tokenizer's files. Each file appears whole or not at all; config.json comes last, so a folder
/// that has one is complete. Throws user_error when the disk refuses.
void save_checkpoint(const std::filesystem::path& folder, const model_config& config,
                     const std::vector<tensor_view>& parameters,
                     const tokenizer* tokens = nullptr);

/// Fills `parameters` (host memory, by name) from the folder's safetensors, converting types. A
/// matrix of 8-bit integers whose scales are there too (its name and "_scale", fp32, one per row) is
/// quantised: its largest magnitude in a row becomes 127. A tied head is filled from the embedding
/// where the file has only that. Throws user_error naming file and tensor, also for a NaN or an
/// infinity in it.
void load_checkpoint(const std::filesystem::path& folder,
                     const std::vector<tensor_view>& parameters);

/// Fills fp32 `parameters` for training from scratch: matrices normal with the config's
/// initializer_range (the residual branches' outputs divided by √(2·layers), as in GPT-2), norms 1,
/// biases 0. The same seed gives the same bits on every machine.
void initialise(const model_config& config, const std::vector<tensor_view>& parameters,
                std::uint64_t seed);

} // namespace millrace::model
