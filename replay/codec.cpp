#include "replay/codec.hpp"

#include <array>

namespace millrace {

namespace {

void put_rollout(byte_writer& w, const rollout& r) {
  w.put(r.id.group);
  w.put(r.id.sample);
  w.put(r.attempt);
  w.put(r.prompt_id);
  w.put(r.prompt_length);
  w.put(r.tokens);
  w.put(r.behaviour_logp);
  w.put(r.versions);
  w.put(static_cast<std::uint8_t>(r.finish));
  w.put(std::string_view(r.text));
  w.put(r.reward);
  w.put(static_cast<std::uint8_t>(r.correct));
  w.put(r.started_at);
  w.put(r.finished_at);
}

rollout get_rollout(byte_reader& in) {
  rollout r;
  r.id.group = in.get<std::int64_t>();
  r.id.sample = in.get<std::int32_t>();
  r.attempt = in.get<std::int32_t>();
  r.prompt_id = in.get<std::int64_t>();
  r.prompt_length = in.get<std::int32_t>();
  r.tokens = in.numbers<std::int32_t>();
  r.behaviour_logp = in.numbers<float>();
  r.versions = in.numbers<std::int32_t>();
  const auto finish = in.get<std::uint8_t>();
  if (finish > static_cast<std::uint8_t>(finish_reason::cancelled))
    throw damaged_bytes("finish reason " + std::to_string(finish));
  r.finish = static_cast<finish_reason>(finish);
  r.text = in.text();
  r.reward = in.get<float>();
  r.correct = in.get<std::uint8_t>() != 0;
  r.started_at = in.get<double>();
  r.finished_at = in.get<double>();
  return r;
}

/// table[k][b]: what byte b does to the checksum k bytes later, so that eight go in one step.
using crc_table = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr crc_table make_crc_table() {
  crc_table t{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    auto c = b;
    for (int i = 0; i < 8; ++i)
      c = (c >> 1) ^ ((c & 1) != 0 ? 0x82F63B78U : 0U);
    t[0][b] = c;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b)
      t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xFF];
  return t;
}

constexpr crc_table crc_bytes = make_crc_table();

} // namespace

void byte_writer::put(const scored_group& group) {
  put(group.group);
  put(group.question.id);
  put(std::string_view(group.question.text));
  put(std::string_view(group.question.answer));
  put(static_cast<std::uint64_t>(group.rollouts.size()));
  for (const auto& r : group.rollouts)
    put_rollout(*this, r);
}

scored_group byte_reader::group() {
  scored_group g;
  g.group = get<std::int64_t>();
  g.question.id = get<std::int64_t>();
  g.question.text = text();
  g.question.answer = text();
  constexpr std::size_t smallest_rollout = 8 + 4 + 4 + 8 + 4 + 3 * 8 + 1 + 8 + 4 + 1 + 8 + 8;
  const auto n = count(smallest_rollout);
  g.rollouts.reserve(n);
  for (std::size_t i = 0; i < n; ++i)
    g.rollouts.push_back(get_rollout(*this));
  return g;
}

std::uint32_t crc32c(std::string_view bytes, std::uint32_t crc) {
  const auto& t = crc_bytes;
  auto c = ~crc;
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  auto n = bytes.size();
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t x;
    std::memcpy(&x, p, 8);
    x ^= c;
    c = t[7][x & 0xFF] ^ t[6][(x >> 8) & 0xFF] ^ t[5][(x >> 16) & 0xFF] ^ t[4][(x >> 24) & 0xFF]
        ^ t[3][(x >> 32) & 0xFF] ^ t[2][(x >> 40) & 0xFF] ^ t[1][(x >> 48) & 0xFF] ^ t[0][x >> 56];
  }
  for (; n > 0; --n, ++p)
    c = (c >> 8) ^ t[0][(c ^ *p) & 0xFF];
  return ~c;
}

} // namespace millrace
