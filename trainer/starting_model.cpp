#include "trainer/starting_model.hpp"

#include "runtime/error.hpp"
#include "runtime/model/tokenizer.hpp"
#include "trainer/memory_estimate.hpp"

namespace millrace::trainer {

namespace {

model::model_config config_from(const settings& s, const model::tokenizer& tokens) {
  auto c = architecture_shape(s, tokens.vocabulary_size());
  c.eos_token_ids = tokens.stop_tokens();
  c.bos_token_id = tokens.bos();
  c.pad_token_id = tokens.pad();
  c.validate("model.architecture");
  return c;
}

} // namespace

model::loaded_model model_from_folder(const settings& s, const std::filesystem::path& folder,
                                      const std::string& where) {
  auto loaded = model::load_model(folder);
  if (!loaded.tokens)
    throw user_error(where + ": " + folder.string() + " has no tokenizer");
  if (loaded.tokens->vocabulary_size() > loaded.network.config().vocab_size)
    throw user_error(where + ": the tokenizer in " + folder.string() + " has "
                     + std::to_string(loaded.tokens->vocabulary_size())
                     + " tokens, the model's vocabulary only "
                     + std::to_string(loaded.network.config().vocab_size));
  if (s.data.chat_template == chat_use::automatic)
    loaded.tokens->use_chat();
  return loaded;
}

model::loaded_model starting_model(const settings& s) {
  if (!s.model.path.empty())
    return model_from_folder(s, s.model.path, "model.path");
  auto tokens = model::make_character_tokenizer({.alphabet = s.tokenizer.alphabet});
  model::transformer network(config_from(s, *tokens));
  network.initialise(s.seed);
  return {std::move(network), std::move(tokens)};
}

} // namespace millrace::trainer
