#include "replay/journal.hpp"

#include "replay/codec.hpp"
#include "runtime/error.hpp"

#include <algorithm>
#include <optional>

namespace millrace {

namespace {

constexpr std::string_view magic = "MRJNL001";
constexpr std::string_view marker = "\xA7MR\x1E";
constexpr std::size_t head_size = 4 + 4 + 4 + 1; ///< marker, length, checksum, kind

struct record {
  record_kind kind;
  std::string_view payload;
  std::size_t size; ///< in the file
};

std::uint32_t checksum_of(std::uint32_t length, std::string_view kind_and_payload) {
  byte_writer w;
  w.put(length);
  return crc32c(kind_and_payload, crc32c(w.bytes()));
}

/// The record that begins the bytes, or nothing when no whole one does.
std::optional<record> first_record(std::string_view bytes) {
  if (bytes.size() < head_size || bytes.substr(0, marker.size()) != marker)
    return {};
  byte_reader head(bytes.substr(marker.size()));
  const auto length = head.get<std::uint32_t>();
  const auto checksum = head.get<std::uint32_t>();
  if (length > bytes.size() - head_size)
    return {};
  const auto body = bytes.substr(head_size - 1, length + 1);
  const auto kind = static_cast<std::uint8_t>(body[0]);
  if (checksum_of(length, body) != checksum || kind < 1
      || kind > static_cast<std::uint8_t>(record_kind::resumed))
    return {};
  return record{static_cast<record_kind>(kind), body.substr(1), head_size + length};
}

/// Where the next whole record begins, at 1 or later; npos when there is none.
std::size_t next_record(std::string_view bytes) {
  for (auto at = bytes.find(marker, 1); at != std::string_view::npos;
       at = bytes.find(marker, at + 1))
    if (first_record(bytes.substr(at)))
      return at;
  return std::string_view::npos;
}

std::string encode(record_kind kind, std::string_view payload) {
  ensure(payload.size() < UINT32_MAX, "a journal record beyond 4 GiB");
  std::string body(1, static_cast<char>(kind));
  body += payload;
  byte_writer w;
  for (char c : marker)
    w.put(c);
  w.put(static_cast<std::uint32_t>(payload.size()));
  w.put(checksum_of(static_cast<std::uint32_t>(payload.size()), body));
  return w.take() + body;
}

} // namespace

journal::journal(std::unique_ptr<journal_file> file, journal_options options, const reader& each)
  : file_(std::move(file)), options_(options) {
  recover(file_->read(), each);
  if (size_ == 0) {
    file_->append(magic);
    size_ = magic.size();
  }
  compacted_size_ = size_;
}

void journal::recover(std::string_view content, const reader& each) {
  auto& r = recovery_;
  const bool begun = content.substr(0, magic.size()) == magic.substr(0, content.size());
  if (!begun)
    throw user_error(file_->name() + ": is not a replay journal of this version (it does not begin "
                     "with " + std::string(magic)
                     + "); remove it, or choose another run directory");
  if (content.size() < magic.size()) {
    r.cut_bytes = content.size();
    if (!content.empty())
      cut(0);
    r.text = file_->name()
             + (content.empty() ? ": new journal" : ": was torn before its first record");
    return;
  }
  auto rest = content.substr(magic.size());
  while (auto record = first_record(rest)) {
    try {
      each(record->kind, record->payload);
    } catch (const damaged_bytes& e) {
      throw user_error(file_->name() + ": record " + std::to_string(r.records)
                       + " has a right checksum and can't be read: " + e.what()
                       + "; was it written by another version of the program?");
    }
    ++r.records;
    rest.remove_prefix(record->size);
  }
  size_ = content.size() - rest.size();
  r.bytes = size_;
  r.cut_bytes = rest.size();
  r.text = file_->name() + ": " + std::to_string(r.records) + " records";
  if (rest.empty())
    return;
  const auto next = next_record(rest);
  if (next != std::string_view::npos && !options_.accept_loss)
    throw user_error(file_->name() + ": is damaged at byte " + std::to_string(size_)
                     + ", with good records from byte " + std::to_string(size_ + next)
                     + " on. A crash doesn't do that: check the disk. Resume from a copy, or "
                     "accept the loss of all records from there on");
  r.text += "; the last " + std::to_string(rest.size()) + " bytes were "
            + (next == std::string_view::npos ? "a record that was being written when the process "
                                                "died"
                                              : "damaged")
            + ", and were cut off";
  cut(size_);
}

void journal::cut(std::uint64_t size) {
  file_->truncate(size);
  file_->sync();
}

void journal::add(record_kind kind, std::string_view payload) {
  queued_ += encode(kind, payload);
  queued_decision_ = queued_decision_ || kind != record_kind::inserted;
}

void journal::write() {
  if (queued_.empty())
    return;
  if (torn_) {
    file_->truncate(size_);
    torn_ = false;
  }
  torn_ = true;
  file_->append(queued_);
  if (options_.sync == journal_sync::always
      || (options_.sync == journal_sync::decisions && queued_decision_))
    file_->sync();
  torn_ = false;
  size_ += queued_.size();
  queued_.clear();
  queued_decision_ = false;
}

void journal::sync() {
  write();
  file_->sync();
}

bool journal::wants_compaction() const {
  return size_ > std::max(options_.compact_above, 2 * compacted_size_);
}

void journal::compact(std::string_view snapshot) {
  auto content = std::string(magic) + encode(record_kind::snapshot, snapshot);
  compacted_size_ = std::max(size_, compacted_size_); // not again at once when this fails
  file_->replace(content);
  size_ = compacted_size_ = content.size();
}

} // namespace millrace
