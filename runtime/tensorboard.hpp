#pragma once

// Event files as TensorBoard reads them: records framed as in TFRecord, each an `Event` in
// Protocol Buffers' wire format (tensorflow/core/util/event.proto, framework/summary.proto).

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

/// Castagnoli's CRC, as in TFRecord files.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);

/// One record: length, masked CRC of the length, the bytes, masked CRC of the bytes.
[[nodiscard]] std::string tfrecord(std::string_view bytes);

/// Writes scalars and histograms by training step into one new file in `folder`. Every call is one
/// record, written through, so that a reader sees whole records only. Not thread-safe.
class tensorboard_writer {
public:
  /// \param wall seconds since 1970
  /// \param from what older files of the folder hold of later steps does not count any more
  /// \throws user_error when the file can't be made
  tensorboard_writer(const std::filesystem::path& folder, double wall, std::int64_t from = 0);
  ~tensorboard_writer();
  tensorboard_writer(const tensorboard_writer&) = delete;
  tensorboard_writer& operator=(const tensorboard_writer&) = delete;

  /// Values by tag; TensorBoard groups them by what stands before the first "/".
  void scalars(std::int64_t step, double wall, const std::map<std::string, double>& values);
  /// counts[i] observations of the value i.
  void histogram(std::int64_t step, double wall, std::string_view tag,
                 std::span<const std::int64_t> counts);

  [[nodiscard]] const std::filesystem::path& file() const { return file_; }

private:
  void write(std::string_view event);

  std::filesystem::path file_;
  int descriptor_ = -1;
};

} // namespace millrace
