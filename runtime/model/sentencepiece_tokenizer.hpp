#pragma once

#include "runtime/model/tokenizer.hpp"

#include <filesystem>
#include <memory>

namespace millrace::model {

/// The tokenizer of folder/tokenizer.model (Llama 2, Mistral, Gemma and their like), by the
/// SentencePiece library: the same ids as its Processor gives, and the same text of ids. Tokens that
/// tokenizer_config.json's `added_tokens_decoder` or added_tokens.json put behind the vocabulary are
/// known too; as special tokens, to encode_markup() only.
///
/// Throws user_error naming the file when it is missing or no SentencePiece model, and when this
/// build is without the library.
std::unique_ptr<tokenizer> load_sentencepiece(const std::filesystem::path& folder);

} // namespace millrace::model
