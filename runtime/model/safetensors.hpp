#pragma once

#include "runtime/tensor_view.hpp"

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace millrace::model {

/// One .safetensors file, mapped into memory. Everything its header says is checked before a byte
/// of data is touched: size, JSON, dtypes, shapes against byte ranges, overlaps, gaps.
class safetensors_file {
public:
  /// Throws user_error naming the file and what is wrong with it.
  explicit safetensors_file(std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// By name. The data may not be written to, and lies at any byte alignment.
  [[nodiscard]] const std::map<std::string, tensor_view>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

private:
  std::filesystem::path path_;
  std::shared_ptr<const std::byte> mapping_;
  std::map<std::string, tensor_view> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// The tensors of a model folder: model.safetensors, or the shards that
/// model.safetensors.index.json lists.
class safetensors_folder {
public:
  /// Throws user_error: no such file, a shard missing or malformed, a tensor listed but not there.
  explicit safetensors_folder(const std::filesystem::path& folder);

  [[nodiscard]] bool contains(const std::string& name) const { return where_.contains(name); }
  [[nodiscard]] std::vector<std::string> names() const;

  /// Copies tensor `into.name` into it, converting between fp32, bf16 and fp16 (round to nearest
  /// even). Throws user_error naming file and tensor when it is missing, of another shape, of a
  /// type that cannot be converted, or holds a NaN or an infinity.
  void read(const tensor_view& into) const;

private:
  std::filesystem::path folder_;
  std::vector<safetensors_file> files_;
  std::map<std::string, std::size_t> where_;
};

/// Writes the tensors (host memory) in the order given: beside `path`, flushed to disk, then
/// renamed, so that a reader sees the old file or the whole new one. Throws user_error when the
/// disk refuses.
void write_safetensors(const std::filesystem::path& path, const std::vector<tensor_view>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// Writes a text or binary file the same atomic way.
void write_file_atomically(const std::filesystem::path& path, const std::string& content);

/// Copies elements between fp32, bf16, fp16; equal types are copied as bytes. Any alignment.
/// Returns false for a pair of types that has no conversion.
bool convert_elements(const std::byte* from, dtype from_type, std::byte* to, dtype to_type,
                      std::int64_t count);

/// safetensors' own name of a dtype: F32, BF16, …
const char* safetensors_name(dtype type);

} // namespace millrace::model
