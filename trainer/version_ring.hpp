#pragma once

#include "runtime/ids.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::trainer {

/// What a version_ring may hold. Bytes are of weights; a place with 0 bytes isn't used.
struct ring_limits {
  std::int32_t versions = 1;     ///< at most
  std::int64_t device_bytes = 0; ///< of the weights' own device, where that isn't the host
  std::int64_t memory_bytes = 0; ///< of the host
  std::int64_t disk_bytes = 0;
  /// For what lies on disk: each ring has a folder of its own in it. Made where it isn't there.
  std::filesystem::path folder;
};

struct ring_usage {
  std::int64_t device_bytes = 0, memory_bytes = 0, disk_bytes = 0; ///< now
  std::int64_t peak_memory_bytes = 0, peak_disk_bytes = 0;
  std::int64_t moved_down = 0; ///< versions that went to a slower place for want of room
  std::int64_t refused = 0;    ///< versions given up because no place had room (not because of age)
  double seconds = 0;          ///< spent copying, writing and reading
  std::string disk_problem;    ///< why nothing goes to disk any more; empty: it does
};

/// The weights of the last published versions, each one flat fp32 tensor, bit for bit as they were.
/// The youngest lie in the fastest place: device, then host memory, then disk; when a place is full
/// its oldest moves to the next one, and where there is none left the oldest version is given up.
/// Budgets are never exceeded, not even for a moment. A disk that refuses to be written to counts as
/// full from then on. Thread-safe.
class version_ring {
public:
  /// Where versions may go to disk, what rings of killed processes have left in the folder is
  /// removed. \throws user_error when nothing can be made there
  explicit version_ring(ring_limits limits);
  /// Removes what is on disk.
  ~version_ring();
  version_ring(const version_ring&) = delete;
  version_ring& operator=(const version_ring&) = delete;

  /// Copies `flat` ([P] fp32) in as version `v`, which must be younger than all that are held.
  /// False when there is no room for even this one.
  bool put(version v, const at::Tensor& flat);

  [[nodiscard]] bool holds(version v) const;
  /// Copies the weights of `v` into `into`; false when it isn't held, or when its file can't be read:
  /// then it is dropped, given_up() says why, and what `into` holds is undefined.
  bool load(version v, at::Tensor into);
  /// Forgets versions older than `v`.
  void forget_below(version v);

  [[nodiscard]] std::vector<version> versions() const; ///< oldest first
  /// The youngest that ever came, held or not; no_version before the first.
  [[nodiscard]] version newest() const;
  [[nodiscard]] ring_usage usage() const;
  /// Why versions are given up before their time, or soon will be; empty: none is.
  [[nodiscard]] std::string given_up() const;
  [[nodiscard]] const ring_limits& limits() const { return limits_; }

private:
  class disk_folder;
  enum class place : std::uint8_t { device, memory, disk };
  struct slot {
    version v;
    place where = place::memory;
    std::int64_t bytes = 0;
    at::Tensor weights; ///< undefined on disk
  };

  [[nodiscard]] std::int64_t budget(place p) const;
  std::int64_t& used(place p);
  bool make_room(place p, std::int64_t bytes);
  bool copy(version v, at::Tensor into);
  bool move_down(slot& s);
  void drop(std::list<slot>::iterator s);
  [[nodiscard]] std::filesystem::path file_of(version v) const;

  ring_limits limits_;
  mutable std::mutex guard_;
  std::list<slot> slots_; ///< oldest first
  version newest_ = no_version;
  ring_usage usage_;
  std::unique_ptr<disk_folder> disk_; ///< null where nothing goes to disk
  bool tidy_ = false; ///< limits_.folder is to go with the last that is in it
  std::vector<at::Tensor> spare_; ///< host memory of dropped versions: touching new memory is slow
};

} // namespace millrace::trainer
