// The buffer's state as bytes. Ages, order and tallies are recomputed from the rollouts.

#include "replay/buffer.hpp"
#include "replay/codec.hpp"
#include "runtime/error.hpp"

#include <algorithm>

namespace millrace {

namespace {

constexpr std::string_view magic = "MRBUF001";

/// Changing the list is changing the format: then the magic changes too.
template <class Counters, class F>
void each_counter(Counters& c, F&& f) {
  for (auto* x : {&c.inserted, &c.already_known, &c.refused, &c.confirmed, &c.dropped, &c.masked,
                  &c.masked_tokens, &c.waits})
    f(*x);
}

} // namespace

std::string replay_buffer::snapshot() const {
  byte_writer w;
  for (char c : magic)
    w.put(c);
  w.put(last_confirmed_.value);
  each_counter(counters_, [&](std::int64_t x) { w.put(x); });
  w.put(dropped_);
  w.put(known_.full_words());
  w.put(static_cast<std::uint64_t>(known_.words().size()));
  for (auto [word, bits] : known_.words()) {
    w.put(word);
    w.put(bits);
  }
  w.put(static_cast<std::uint64_t>(order_.size()));
  for (auto [oldest, group] : order_)
    w.put(*waiting_.at(group).group);
  w.put(static_cast<std::uint8_t>(out_ != nullptr));
  if (out_) {
    w.put(out_->from.value);
    w.put(static_cast<std::uint64_t>(out_->groups.size()));
    for (const auto& g : out_->groups)
      w.put(*g);
  }
  w.put(crc32c(w.bytes()));
  return w.take();
}

replay_buffer replay_buffer::restore(buffer_options options, std::string_view bytes,
                                     const std::string& where) {
  replay_buffer b(options);
  try {
    if (bytes.size() < magic.size() + 4 || bytes.substr(0, magic.size()) != magic)
      throw damaged_bytes("it does not begin with " + std::string(magic));
    byte_reader checksum(bytes.substr(bytes.size() - 4));
    bytes.remove_suffix(4);
    if (checksum.get<std::uint32_t>() != crc32c(bytes))
      throw damaged_bytes("the checksum does not match");
    byte_reader in(bytes.substr(magic.size()));
    b.last_confirmed_.value = in.get<std::int32_t>();
    each_counter(b.counters_, [&](std::int64_t& x) { x = in.get<std::int64_t>(); });
    b.dropped_ = in.numbers<std::int64_t>();
    const auto full_words = in.get<std::int64_t>();
    std::map<std::int64_t, std::uint64_t> words;
    for (auto n = in.count(16); n > 0; --n) {
      const auto word = in.get<std::int64_t>();
      words.emplace_hint(words.end(), word, in.get<std::uint64_t>());
    }
    b.known_ = group_set::restore(full_words, std::move(words));
    auto read_groups = [&] {
      std::vector<std::int64_t> ids;
      for (auto n = in.count(1); n > 0; --n) {
        auto group = std::make_shared<const scored_group>(in.group());
        const auto id = group->group;
        ids.push_back(id);
        b.enqueue(id, make_entry(std::move(group)));
      }
      return ids;
    };
    read_groups();
    if (in.get<std::uint8_t>() != 0) {
      const version from{in.get<std::int32_t>()};
      b.adopt(from, read_groups());
    }
    in.end();
  } catch (const damaged_bytes& e) {
    throw user_error(where + ": the saved replay buffer is damaged (" + e.what()
                     + "). Resume from another checkpoint, or start without it");
  }
  return b;
}

} // namespace millrace
