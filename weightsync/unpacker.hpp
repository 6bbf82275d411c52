#pragma once

#include "weightsync/manifest.hpp"
#include "weightsync/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace millrace::weightsync {

/// Proves pulled bytes and puts them where the plan says, converting types. Host memory.
class unpacker {
public:
  explicit unpacker(std::vector<tensor_view> tensors);

  /// A new version begins; both must live until it ends.
  void begin(const manifest& m, const transfer_plan& plan);

  /// Compares the checksums of a fetch's shards; names the first that is wrong, with its peer. Empty:
  /// all are right.
  [[nodiscard]] std::string verify(const fetch& f, std::span<const std::byte> bytes) const;

  /// Puts the proven bytes into the tensors, and quantises those that are complete by that. Each
  /// fetch once.
  void unpack(const fetch& f, std::span<const std::byte> bytes);

  /// The same for a fetch of changes: rebuilds each shard out of `base` (the receiver's tensors with
  /// the version before) and the changes, proves it by its own checksum, and puts it in place. Names
  /// the first shard that is wrong; the tensors hold nothing usable then. Empty: all are right.
  [[nodiscard]] std::string rebuild(const fetch& f, std::span<const std::byte> bytes,
                                    std::span<const tensor_view> base);

  [[nodiscard]] double load_s() const { return load_s_; }
  [[nodiscard]] double quantise_s() const { return quantise_s_; }

private:
  struct source {
    const tensor_entry& tensor;
    const shard& piece;
    const std::byte* bytes;
  };

  [[nodiscard]] std::string label(const landing& l) const;
  void land(const landing& l, const std::byte* bytes);
  void copy_run(const source& s, std::uint32_t view, std::int64_t from, std::int64_t to,
                std::int64_t length);
  void copy_i8(const source& s, std::uint32_t view, std::int64_t from, std::int64_t to,
               std::int64_t length);
  void quantise(std::uint32_t view);
  [[nodiscard]] float* scales_of(std::uint32_t view);

  std::vector<tensor_view> tensors_;
  std::map<std::string, std::size_t> index_;
  const manifest* manifest_ = nullptr;
  const transfer_plan* plan_ = nullptr;
  std::vector<std::vector<float>> collected_;  // by tensor; empty when not being collected
  std::vector<std::int64_t> missing_;          // elements of the tensor that have not come
  std::vector<std::byte> rebuilt_;
  double load_s_ = 0;
  double quantise_s_ = 0;
};

} // namespace millrace::weightsync
