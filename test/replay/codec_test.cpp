#include "replay/codec.hpp"

#include "test/replay/sample_groups.hpp"

using namespace millrace;

TEST_CASE("codec: CRC-32C gives the published check value, in one piece or two") {
  REQUIRE(crc32c("123456789") == 0xE3069283U);
  REQUIRE(crc32c("") == 0U);
  std::string text(1000, 'x');
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<char>(i * 7);
  for (std::size_t cut = 0; cut <= text.size(); cut += 37)
    REQUIRE(crc32c(text.substr(cut), crc32c(text.substr(0, cut))) == crc32c(text));
}

TEST_CASE("codec: groups come back as they were, and never from fewer bytes") {
  std::mt19937_64 random(5);
  for (std::int64_t id = 0; id < 20; ++id) {
    auto g = random_group(random, id, static_cast<std::int32_t>(id % 5), 7, 3);
    g.question.text = std::string("a\0b\n\xC3\xA9", 6);
    byte_writer w;
    w.put(g);
    byte_reader in(w.bytes());
    const auto back = in.group();
    in.end();
    REQUIRE(back.group == g.group);
    REQUIRE(back.question.text == g.question.text);
    REQUIRE(back.question.answer == g.question.answer);
    REQUIRE(back.rollouts.size() == g.rollouts.size());
    for (std::size_t i = 0; i < g.rollouts.size(); ++i) {
      REQUIRE(back.rollouts[i].id == g.rollouts[i].id);
      REQUIRE(back.rollouts[i].tokens == g.rollouts[i].tokens);
      REQUIRE(back.rollouts[i].versions == g.rollouts[i].versions);
      REQUIRE(back.rollouts[i].behaviour_logp == g.rollouts[i].behaviour_logp);
      REQUIRE(back.rollouts[i].text == g.rollouts[i].text);
      REQUIRE(back.rollouts[i].reward == g.rollouts[i].reward);
      REQUIRE(back.rollouts[i].correct == g.rollouts[i].correct);
      REQUIRE(back.rollouts[i].finish == g.rollouts[i].finish);
    }
    for (std::size_t n = 0; n < w.bytes().size(); ++n) {
      byte_reader cut(std::string_view(w.bytes()).substr(0, n));
      REQUIRE_THROWS_AS(cut.group(), damaged_bytes);
    }
  }
}

TEST_CASE("codec: a length from garbage allocates nothing") {
  const std::string huge(64, '\xFF');
  byte_reader in(huge);
  REQUIRE_THROWS_AS(in.group(), damaged_bytes);
  byte_reader numbers(huge);
  REQUIRE_THROWS_AS(numbers.numbers<double>(), damaged_bytes);
}
