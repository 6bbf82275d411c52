#pragma once

// Training tensors of a checkpoint where each rank writes its own part of them.

#include "runtime/model/model_config.hpp"
#include "runtime/model/safetensors.hpp"
#include "runtime/tensor_view.hpp"
#include "trainer/parallel.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace millrace::trainer {

/// Tensors as they were when they were copied, from wherever they were, to host memory.
struct copied_tensors {
  std::vector<std::byte> memory;
  std::vector<tensor_view> views; ///< of `memory`
};
copied_tensors copy_of(std::vector<tensor_view> views);

/// Which rank writes what. A shard has, by the whole tensor's name, what its rank holds of it: its
/// slice over tp ranks and, of moments shared out by ZeRO-1, its stretch of that slice's elements,
/// in the order of dp ranks. What dp ranks have alike is written by the first of them.
struct shard_plan {
  rank_grid grid;
  bool zero1 = false;

  [[nodiscard]] bool writes(int rank) const { return zero1 || grid.data_index(rank) == 0; }
  /// "optimizer-1-of-4.safetensors"
  [[nodiscard]] std::string file(int rank) const;

  [[nodiscard]] nlohmann::json to_json() const;
  static shard_plan from_json(const nlohmann::json& j);
};

/// Writes one rank's shard while it trains on, one at a time.
class shard_writer {
public:
  ~shard_writer();
  /// Waits for the one before. When the disk refuses, FILE.failed says why.
  void begin(copied_tensors what, const std::filesystem::path& folder, const std::string& file);

private:
  std::thread thread_;
};

/// Moves the other ranks' shards to `to` as soon as all are in `from`. `lost` says that a rank has
/// died, and how; empty: none has. \throws user_error
void gather_shards(const shard_plan& plan, const std::filesystem::path& from,
                   const std::filesystem::path& to, const std::function<std::string()>& lost,
                   double timeout_s);

/// Puts whole tensors together.
class shard_reader {
public:
  /// `whole`: of the whole model. \throws user_error
  shard_reader(const std::filesystem::path& folder, const shard_plan& plan,
               const model::model_config& whole);

  /// fp32, valid until the next call; null where the shards have no such tensor, or not all of it.
  const std::byte* find(const tensor_view& whole);

private:
  shard_plan plan_;
  model::model_config config_;
  std::vector<std::optional<model::safetensors_file>> files_; ///< by rank
  std::vector<std::byte> memory_;
};

} // namespace millrace::trainer
