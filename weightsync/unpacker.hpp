#pragma once

#include "weightsync/manifest.hpp"
#include "weightsync/memory_device.hpp"
#include "weightsync/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace millrace::weightsync {

/// A fetch whose bytes have come.
struct arrival {
  const fetch* what = nullptr;
  std::span<std::byte> bytes;
};

/// Proves pulled bytes and puts them where the plan says, converting types; all tensors in one kind
/// of memory.
class unpacker {
public:
  explicit unpacker(std::vector<tensor_view> tensors);

  /// A new version begins; both must live until it ends.
  void begin(const manifest& m, const transfer_plan& plan);

  /// Compares the checksums of the shards that came, and puts those into the tensors whose fetch is
  /// right; quantises tensors that are complete by that. For each fetch the first shard that is
  /// wrong, with its peer, or nothing. A fetch that was right must not come again.
  std::vector<std::string> land(std::span<const arrival> came);

  /// The same for a fetch of changes: rebuilds each shard out of `base` (the receiver's tensors with
  /// the version before) and the changes, proves it by its own checksum, and puts it in place. Host
  /// memory only. Names the first shard that is wrong; the tensors hold nothing usable then.
  std::string rebuild(const arrival& came, std::span<const tensor_view> base);

  [[nodiscard]] memory_device& device() const { return *device_; }
  [[nodiscard]] double verify_s() const { return verify_s_; }
  [[nodiscard]] double load_s() const { return load_s_; }
  [[nodiscard]] double quantise_s() const { return quantise_s_; }

private:
  [[nodiscard]] std::string label(const landing& l) const;
  std::vector<std::string> verify(std::span<const arrival> came) const;
  void add_copies(const landing& l, const std::byte* bytes);
  void add_scaled_copies(const landing& l, const std::byte* bytes, const shard_copy& c);
  void count_down(const fetch& f);
  void quantise_complete();
  float* scales_of(std::uint32_t view);

  std::vector<tensor_view> tensors_;
  memory_device* device_;
  std::map<std::string, std::size_t> index_;
  const manifest* manifest_ = nullptr;
  const transfer_plan* plan_ = nullptr;
  std::vector<std::shared_ptr<std::byte[]>> collected_; // by tensor: f32, while being collected
  std::vector<std::int64_t> missing_; // elements of the tensor that have not come
  std::vector<std::uint32_t> complete_;
  std::vector<typed_copy> copies_;
  std::map<std::uint32_t, std::vector<float>> scales_; // by tensor: of i8 that comes as i8
  std::vector<std::byte> rebuilt_;
  double verify_s_ = 0;
  double load_s_ = 0;
  double quantise_s_ = 0;
};

} // namespace millrace::weightsync
