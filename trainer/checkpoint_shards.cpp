#include "trainer/checkpoint_shards.hpp"

#include "runtime/error.hpp"
#include "runtime/model/tensor_parallel.hpp"
#include "trainer/tensor_memory.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>

namespace fs = std::filesystem;

namespace millrace::trainer {

namespace {

constexpr auto failed_suffix = ".failed";

} // namespace

copied_tensors copy_of(std::vector<tensor_view> views) {
  copied_tensors out;
  std::size_t bytes = 0;
  for (const auto& v : views)
    bytes += v.bytes();
  out.memory.resize(bytes);
  auto* at = out.memory.data();
  for (auto& v : views) {
    copy_out(v, at);
    v.data = at;
    v.memory = memory_kind::host;
    at += v.bytes();
  }
  out.views = std::move(views);
  return out;
}

std::string shard_plan::file(int rank) const {
  return "optimizer-" + std::to_string(rank) + "-of-" + std::to_string(grid.ranks())
         + ".safetensors";
}

nlohmann::json shard_plan::to_json() const {
  return {{"dp", grid.dp}, {"tp", grid.tp}, {"zero1", zero1}};
}

shard_plan shard_plan::from_json(const nlohmann::json& j) {
  return {{j.at("dp").get<int>(), j.at("tp").get<int>()}, j.at("zero1").get<bool>()};
}

// -- writing ---------------------------------------------------------------------------------------

shard_writer::~shard_writer() {
  if (thread_.joinable())
    thread_.join();
}

void shard_writer::begin(copied_tensors what, const fs::path& folder, const std::string& file) {
  if (thread_.joinable())
    thread_.join();
  thread_ = std::thread([what = std::move(what), folder, file] {
    try {
      model::write_safetensors(folder / file, what.views);
    } catch (const std::exception& e) {
      std::ofstream(folder / (file + failed_suffix)) << e.what();
    }
  });
}

void gather_shards(const shard_plan& plan, const fs::path& from, const fs::path& to,
                   const std::function<std::string()>& lost, double timeout_s) {
  using clock = std::chrono::steady_clock;
  const auto until = clock::now() + std::chrono::duration<double>(timeout_s);
  for (int rank = 1; rank < plan.grid.ranks(); ++rank) {
    if (!plan.writes(rank))
      continue;
    const auto file = plan.file(rank);
    while (!fs::exists(from / file)) {
      if (std::ifstream failed(from / (file + failed_suffix)); failed) {
        std::string text;
        std::getline(failed, text);
        throw user_error("checkpoint: trainer rank " + std::to_string(rank)
                         + " could not write its part: " + text);
      }
      if (auto how = lost(); !how.empty())
        throw user_error("checkpoint: given up, " + how);
      if (clock::now() > until)
        throw user_error("checkpoint: trainer rank " + std::to_string(rank)
                         + " has written nothing to " + from.string() + " within "
                         + std::to_string(static_cast<int>(timeout_s))
                         + " s. Where ranks don't see the same disk, set "
                           "trainer.parallel.sharded_checkpoints to false");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (from != to)
      fs::rename(from / file, to / file);
  }
}

// -- reading ---------------------------------------------------------------------------------------

shard_reader::shard_reader(const fs::path& folder, const shard_plan& plan,
                           const model::model_config& whole)
    : plan_(plan), config_(whole), files_(static_cast<std::size_t>(plan.grid.ranks())) {
  for (int rank = 0; rank < plan.grid.ranks(); ++rank)
    if (plan.writes(rank))
      files_[static_cast<std::size_t>(rank)].emplace(folder / plan.file(rank));
}

const std::byte* shard_reader::find(const tensor_view& whole) {
  memory_.resize(whole.bytes());
  auto all = at::from_blob(memory_.data(), whole.shape, at::kFloat);
  for (int t = 0; t < plan_.grid.tp; ++t) {
    const auto slice = model::slice_of(config_, whole.name, t, plan_.grid.tp);
    if (t > 0 && slice.dimension < 0)
      break; // every tp rank has the same
    auto shape = whole.shape;
    if (slice.dimension >= 0)
      shape[static_cast<std::size_t>(slice.dimension)] = slice.length;
    auto part = at::empty(shape, at::kFloat);
    auto* to = static_cast<std::byte*>(part.mutable_data_ptr());
    auto missing = part.nbytes();
    for (int d = 0; d < plan_.grid.dp; ++d) {
      const auto& file = files_[static_cast<std::size_t>(d * plan_.grid.tp + t)];
      if (!file)
        continue;
      const auto found = file->tensors().find(whole.name);
      if (found == file->tensors().end())
        continue;
      const auto& piece = found->second;
      if (piece.type != dtype::f32 || piece.bytes() > missing)
        return nullptr;
      std::memcpy(to, piece.data, piece.bytes());
      to += piece.bytes();
      missing -= piece.bytes();
    }
    if (missing > 0)
      return nullptr;
    slice.of(all).copy_(part);
  }
  return memory_.data();
}

} // namespace millrace::trainer
