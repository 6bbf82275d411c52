#include "runtime/short_forms.hpp"

#include <catch2/catch.hpp>

#include <string>

using namespace millrace;

TEST_CASE("short forms: numbers and times are short") {
  CHECK(short_duration(0.0000001) == "0 µs");
  CHECK(short_duration(0.0032) == "3.2 ms");
  CHECK(short_duration(0.25) == "250 ms");
  CHECK(short_duration(9.96) == "10.0 s");
  CHECK(short_duration(119) == "119 s");
  CHECK(short_duration(3723) == "62 m 03");
  CHECK(short_duration(7380) == "2 h 03");
  CHECK(short_number(9999) == "9999");
  CHECK(short_number(12345) == "12.3k");
  CHECK(short_number(1.5e6) == "1.5M");
  CHECK(short_number(2e9) == "2.0G");
}

TEST_CASE("short forms: columns are letters, not bytes, and no colours") {
  CHECK(columns_of("") == 0);
  CHECK(columns_of("η → 2") == 5);
  CHECK(columns_of("\033[1mbold\033[0m") == 4);
  CHECK(columns_of("\033[") == 0);
}

TEST_CASE("short forms: printed text may be long") {
  const std::string word(3000, 'x');
  CHECK(printed("%s %d", word.c_str(), 7) == word + " 7");
  CHECK(printed("%s", "").empty());
}
