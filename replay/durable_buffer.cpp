#include "replay/durable_buffer.hpp"

#include "replay/codec.hpp"
#include "runtime/error.hpp"

#include <utility>

namespace millrace {

durable_buffer::durable_buffer(buffer_options options, std::unique_ptr<journal_file> file,
                               journal_options journal)
  : buffer_(options),
    journal_(std::move(file), journal,
             [this](record_kind kind, std::string_view payload) { replay(kind, payload); }) {
}

void durable_buffer::replay(record_kind kind, std::string_view payload) {
  byte_reader in(payload);
  auto next_version = [&] { return version{in.get<std::int32_t>()}; };
  switch (kind) {
    case record_kind::snapshot:
      buffer_ = replay_buffer::restore(buffer_.options(), payload, "replay journal");
      return;
    case record_kind::inserted: buffer_.readmit(in.group()); break;
    case record_kind::handed_out: {
      const auto from = next_version();
      const auto missing = buffer_.adopt(from, in.numbers<std::int64_t>());
      if (!missing.empty())
        throw damaged_bytes("it hands out group " + std::to_string(missing[0])
                            + ", which is not there");
      break;
    }
    case record_kind::confirmed: buffer_.confirmed(next_version()); break;
    case record_kind::taken_back: buffer_.take_back(); break;
    case record_kind::dropped: buffer_.drop(in.numbers<std::int64_t>()); break;
    case record_kind::resumed: buffer_.resume(next_version()); break;
  }
  in.end();
}

// -- records --------------------------------------------------------------------------------------

void durable_buffer::add_version(record_kind kind, version v) {
  byte_writer w;
  w.put(v.value);
  journal_.add(kind, w.bytes());
}

void durable_buffer::add_dropped(std::size_t known_before) {
  const auto& all = buffer_.dropped();
  if (all.size() <= known_before)
    return;
  byte_writer w;
  w.put(std::vector<std::int64_t>(all.begin() + static_cast<std::ptrdiff_t>(known_before),
                                  all.end()));
  journal_.add(record_kind::dropped, w.bytes());
}

void durable_buffer::add_handed_out() {
  const auto& batch = *buffer_.batch_out();
  std::vector<std::int64_t> groups;
  for (const auto& g : batch.groups)
    groups.push_back(g->group);
  byte_writer w;
  w.put(batch.from.value);
  w.put(groups);
  journal_.add(record_kind::handed_out, w.bytes());
}

void durable_buffer::write() {
  journal_.write();
  if (!journal_.wants_compaction())
    return;
  try {
    journal_.compact(buffer_.snapshot());
    ++compactions_;
  } catch (const user_error& e) {
    warning_ = std::string("the journal could not be compacted: ") + e.what();
  }
}

// -- the buffer's members -------------------------------------------------------------------------
// Each first writes what an earlier call could not, then does its work, and returns only when that
// is written as well.

insert_result durable_buffer::insert(scored_group group) {
  write();
  byte_writer w;
  w.put(group);
  const auto result = buffer_.insert(std::move(group));
  if (result == insert_result::inserted)
    journal_.add(record_kind::inserted, w.bytes());
  write();
  return result;
}

hand_out_result durable_buffer::hand_out(version from,
                                         std::span<const in_flight_rollout> in_flight) {
  write();
  const auto dropped = buffer_.dropped().size();
  const auto before = buffer_.batch_out();
  auto result = buffer_.hand_out(from, in_flight);
  add_dropped(dropped);
  if (buffer_.batch_out() != before)
    add_handed_out();
  write();
  return result;
}

bool durable_buffer::confirmed(version from) {
  write();
  const bool was_out = buffer_.batch_out() != nullptr;
  const bool result = buffer_.confirmed(from);
  if (was_out && !buffer_.batch_out())
    add_version(record_kind::confirmed, from);
  write();
  return result;
}

std::vector<std::int64_t> durable_buffer::adopt(version from,
                                                std::span<const std::int64_t> groups) {
  write();
  const bool was_out = buffer_.batch_out() != nullptr;
  auto missing = buffer_.adopt(from, groups);
  if (was_out)
    journal_.add(record_kind::taken_back, {});
  if (missing.empty())
    add_handed_out();
  write();
  return missing;
}

bool durable_buffer::take_back() {
  write();
  const bool result = buffer_.take_back();
  if (result)
    journal_.add(record_kind::taken_back, {});
  write();
  return result;
}

void durable_buffer::drop(std::span<const std::int64_t> groups) {
  write();
  const auto dropped = buffer_.dropped().size();
  buffer_.drop(groups);
  add_dropped(dropped);
  write();
}

void durable_buffer::resume(version from) {
  write();
  buffer_.resume(from);
  add_version(record_kind::resumed, from);
  write();
}

} // namespace millrace
