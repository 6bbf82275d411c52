// Tokenizes lines, for bench/peers/tokenizers.sh: tokenizer_lines FOLDER, with one JSON string a
// line on the standard input. Each gives one line: {"ids": …, "plain": …, "text": …, "stream": …},
// the tokens with special tokens' names read as such and not, and both decoders' text of the former.
// The time that encoding took goes to the standard error.

#include "runtime/error.hpp"
#include "runtime/model/stream_decoder.hpp"
#include "runtime/model/tokenizer.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <iostream>

namespace {

double seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

void run(const char* folder) {
  const auto tokens = millrace::model::load_tokenizer(folder);
  double spent = 0;
  std::size_t bytes = 0, count = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = nlohmann::json::parse(line).get<std::string>();
    const auto begin = seconds();
    const auto ids = tokens->encode_markup(text);
    spent += seconds() - begin;
    bytes += text.size();
    count += ids.size();
    millrace::model::stream_decoder stream(*tokens);
    std::string streamed;
    for (const auto id : ids)
      streamed += stream.add(id);
    streamed += stream.finish();
    std::cout << nlohmann::json{{"ids", ids}, {"plain", tokens->encode(text)},
                                {"text", tokens->decode(ids)}, {"stream", streamed}}
              << '\n';
  }
  std::cerr << nlohmann::json{{"bytes", bytes}, {"tokens", count}, {"seconds", spent}} << '\n';
}

} // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: tokenizer_lines FOLDER < JSON strings\n";
    return 2;
  }
  try {
    run(arguments[1]);
  } catch (const std::exception& e) {
    std::cerr << "tokenizer_lines: " << e.what() << '\n';
    return 2;
  }
  return 0;
}
