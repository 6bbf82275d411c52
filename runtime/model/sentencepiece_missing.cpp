// In place of sentencepiece_tokenizer.cpp where the library wasn't there when this was built.

#include "runtime/error.hpp"
#include "runtime/model/sentencepiece_tokenizer.hpp"

namespace millrace::model {

std::unique_ptr<tokenizer> load_sentencepiece(const std::filesystem::path& folder) {
  throw user_error((folder / "tokenizer.model").string() + ": this build can't read SentencePiece "
                   "models; install libsentencepiece-dev and build again, or save the tokenizer as "
                   "tokenizer.json");
}

} // namespace millrace::model
