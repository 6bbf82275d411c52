#pragma once

#include "runtime/config/settings.hpp"
#include "runtime/model/transformer.hpp"

#include <filesystem>
#include <string>

namespace millrace::trainer {

/// What training begins from: settings.model.path, or a model made from scratch by
/// settings.model.architecture, settings.tokenizer and settings.seed. \throws user_error
model::loaded_model starting_model(const settings& s);

/// A model folder with its tokenizer; `where` begins what is told of one that can't be used.
/// \throws user_error
model::loaded_model model_from_folder(const settings& s, const std::filesystem::path& folder,
                                      const std::string& where);

} // namespace millrace::trainer
