#include "runtime/model/safetensors.hpp"

#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace millrace::model {
namespace {

using nlohmann::json;

constexpr std::pair<const char*, dtype> type_names[] = {
  {"F32", dtype::f32},     {"BF16", dtype::bf16}, {"F16", dtype::f16}, {"I8", dtype::i8},
  {"F8_E4M3", dtype::f8_e4m3}, {"I32", dtype::i32}, {"I64", dtype::i64}, {"U8", dtype::u8},
};

std::optional<dtype> type_named(const std::string& name) {
  for (const auto& [text, type] : type_names)
    if (name == text)
      return type;
  return {};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

struct mapped_file {
  std::shared_ptr<const std::byte> data;
  std::size_t size = 0;
};

mapped_file map_file(const std::string& path, std::size_t least) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    throw user_error(path + ": cannot be opened: " + std::strerror(errno));
  struct ::stat status{};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    throw user_error(path + ": is not a file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size < least) {
    ::close(fd);
    throw user_error(path + ": is truncated: it has only " + std::to_string(size) + " bytes");
  }
  void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  ::close(fd);
  if (at == MAP_FAILED)
    throw user_error(path + ": cannot be mapped into memory: " + std::strerror(errno));
  return {{static_cast<const std::byte*>(at),
           [size](const std::byte* p) { ::munmap(const_cast<std::byte*>(p), size); }},
          size};
}

/// Checks one header entry against the data area and makes its view.
tensor_view checked_view(const std::string& path, const std::string& name, const json& entry,
                         const std::byte* data, std::size_t data_size,
                         std::pair<std::size_t, std::size_t>& range) {
  const auto fail = [&](const std::string& what) {
    throw user_error(path + ": tensor \"" + name + "\": " + what);
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string()
      || !entry.contains("shape") || !entry["shape"].is_array()
      || !entry.contains("data_offsets") || !entry["data_offsets"].is_array()
      || entry["data_offsets"].size() != 2)
    fail("its header entry needs dtype, shape and two data_offsets");
  tensor_view view;
  view.name = name;
  const auto type = type_named(entry["dtype"].get<std::string>());
  if (!type)
    fail("dtype " + entry["dtype"].dump() + " is not supported");
  view.type = *type;
  std::size_t bytes = size_of(view.type);
  for (const auto& d : entry["shape"]) {
    if (!d.is_number_unsigned())
      fail("shape " + entry["shape"].dump() + " must be whole numbers");
    const auto extent = d.get<std::uint64_t>();
    if (extent > (std::uint64_t{1} << 48) || (bytes && extent > (std::uint64_t{1} << 56) / bytes))
      fail("shape " + entry["shape"].dump() + " is impossibly large");
    bytes *= extent;
    view.shape.push_back(static_cast<std::int64_t>(extent));
  }
  const auto& offsets = entry["data_offsets"];
  if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
    fail("data_offsets " + offsets.dump() + " must be whole numbers");
  const auto begin = offsets[0].get<std::uint64_t>(), end = offsets[1].get<std::uint64_t>();
  if (begin > end || end > data_size)
    fail("data_offsets " + offsets.dump() + " lie outside the file's " + std::to_string(data_size)
         + " data bytes: truncated file or damaged header");
  if (end - begin != bytes)
    fail("data_offsets " + offsets.dump() + " hold " + std::to_string(end - begin)
         + " bytes, but dtype and shape need " + std::to_string(bytes));
  range = {begin, end};
  view.data = const_cast<std::byte*>(data) + begin;
  return view;
}

float from_half(std::uint16_t h) {
  const std::uint32_t sign = std::uint32_t{h & 0x8000U} << 16;
  const std::uint32_t exponent = h >> 10 & 0x1FU, mantissa = h & 0x3FFU;
  if (exponent == 0x1F)
    return std::bit_cast<float>(sign | 0x7F800000U | mantissa << 13);
  if (exponent != 0)
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24F;
  return sign ? -magnitude : magnitude;
}

std::uint16_t to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U)
    return sign | 0x7E00U;
  if (magnitude >= 0x477FF000U) // rounds to 65536 or more
    return sign | 0x7C00U;
  if (magnitude < 0x38800000U) { // subnormal half: the float adder rounds to nearest even
    const float scaled = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(scaled) - 0x3F000000U);
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + (magnitude >> 13 & 1U);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000U) >> 13);
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U)
    return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

float load_float(const std::byte* p, dtype type) {
  if (type == dtype::f32) {
    float x;
    std::memcpy(&x, p, 4);
    return x;
  }
  std::uint16_t x;
  std::memcpy(&x, p, 2);
  return type == dtype::f16 ? from_half(x) : std::bit_cast<float>(std::uint32_t{x} << 16);
}

void store_float(std::byte* p, dtype type, float x) {
  if (type == dtype::f32) {
    std::memcpy(p, &x, 4);
    return;
  }
  const std::uint16_t h = type == dtype::f16 ? to_half(x) : to_bf16(x);
  std::memcpy(p, &h, 2);
}

/// The first element that is no finite number: all bits of its exponent are set. `count`: none.
template <class Word>
std::int64_t first_not_finite(const std::byte* data, std::int64_t count, Word exponent) {
  constexpr std::int64_t block = 4096; // of a fixed size, so that the compiler vectorises the loop
  const auto not_finite = [&](std::int64_t i) {
    Word w;
    std::memcpy(&w, data + i * static_cast<std::int64_t>(sizeof w), sizeof w);
    return static_cast<Word>((w & exponent) == exponent);
  };
  std::int64_t i = 0;
  for (; i + block <= count; i += block) {
    Word any = 0;
    for (std::int64_t j = 0; j < block; ++j)
      any |= not_finite(i + j);
    if (any != 0)
      break;
  }
  while (i < count && not_finite(i) == 0)
    ++i;
  return i;
}

std::int64_t first_not_finite(const tensor_view& v) {
  switch (v.type) {
    case dtype::f32: return first_not_finite<std::uint32_t>(v.data, v.elements(), 0x7F800000U);
    case dtype::bf16: return first_not_finite<std::uint16_t>(v.data, v.elements(), 0x7F80U);
    case dtype::f16: return first_not_finite<std::uint16_t>(v.data, v.elements(), 0x7C00U);
    default: return v.elements();
  }
}

/// A file that is written beside its final place and renamed when complete.
class atomic_file {
public:
  explicit atomic_file(const std::filesystem::path& path)
      : path_(path), aside_(path.string() + ".partial-" + std::to_string(::getpid())) {
    fd_ = ::open(aside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0)
      fail();
  }
  ~atomic_file() {
    if (fd_ >= 0)
      ::close(fd_);
    if (!done_)
      ::unlink(aside_.c_str());
  }
  atomic_file(const atomic_file&) = delete;
  atomic_file& operator=(const atomic_file&) = delete;

  void write(const void* data, std::size_t size) {
    const auto* p = static_cast<const char*>(data);
    while (size > 0) {
      const auto n = ::write(fd_, p, std::min(size, std::size_t{1} << 26));
      if (n < 0 && errno == EINTR)
        continue;
      if (n <= 0)
        fail();
      p += n;
      size -= static_cast<std::size_t>(n);
    }
  }
  void finish() {
    if (::fsync(fd_) != 0)
      fail();
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0 || ::rename(aside_.c_str(), path_.c_str()) != 0)
      fail();
    done_ = true;
    // The new name, too, must survive a power cut.
    const auto folder = path_.has_parent_path() ? path_.parent_path().string() : ".";
    if (const int dir = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); dir >= 0) {
      ::fsync(dir);
      ::close(dir);
    }
  }

private:
  [[noreturn]] void fail() {
    throw user_error(path_.string() + ": cannot be written: " + std::strerror(errno));
  }

  std::filesystem::path path_;
  std::string aside_;
  int fd_ = -1;
  bool done_ = false;
};

} // namespace

const char* safetensors_name(dtype type) {
  for (const auto& [text, t] : type_names)
    if (t == type)
      return text;
  return "?";
}

bool convert_elements(const std::byte* from, dtype from_type, std::byte* to, dtype to_type,
                      std::int64_t count) {
  if (from_type == to_type) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * size_of(to_type));
    return true;
  }
  const auto floating = [](dtype t) {
    return t == dtype::f32 || t == dtype::bf16 || t == dtype::f16;
  };
  if (!floating(from_type) || !floating(to_type))
    return false;
  const auto from_size = size_of(from_type), to_size = size_of(to_type);
  for (std::int64_t i = 0; i < count; ++i, from += from_size, to += to_size)
    store_float(to, to_type, load_float(from, from_type));
  return true;
}

safetensors_file::safetensors_file(std::filesystem::path path) : path_(std::move(path)) {
  const auto file = path_.string();
  const auto mapped = map_file(file, 8);
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, mapped.data.get(), 8);
  if (header_size > mapped.size - 8)
    throw user_error(file + ": is truncated or no safetensors file: its header is said to be "
                     + std::to_string(header_size) + " bytes, the file has "
                     + std::to_string(mapped.size));
  const auto* text = reinterpret_cast<const char*>(mapped.data.get()) + 8;
  const auto header = json::parse(text, text + header_size, nullptr, false);
  if (header.is_discarded() || !header.is_object())
    throw user_error(file + ": is no safetensors file: its header is not a JSON object");
  const auto* data = mapped.data.get() + 8 + header_size;
  const auto data_size = mapped.size - 8 - header_size;
  std::vector<std::pair<std::pair<std::size_t, std::size_t>, std::string>> ranges;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (entry.is_object())
        for (const auto& [k, v] : entry.items())
          metadata_[k] = v.is_string() ? v.get<std::string>() : v.dump();
      continue;
    }
    std::pair<std::size_t, std::size_t> range;
    tensors_[name] = checked_view(file, name, entry, data, data_size, range);
    ranges.emplace_back(range, name);
  }
  std::sort(ranges.begin(), ranges.end());
  std::size_t reached = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto& [range, name] = ranges[i];
    if (range.first < reached)
      throw user_error(file + ": tensor \"" + name + "\": its data overlaps that of \""
                       + ranges[i ? i - 1 : 0].second + "\"");
    if (range.first > reached)
      throw user_error(file + ": tensor \"" + name + "\": a gap of "
                       + std::to_string(range.first - reached) + " bytes lies before its data");
    reached = range.second;
  }
  if (reached != data_size)
    throw user_error(file + ": has " + std::to_string(data_size - reached)
                     + " bytes after its last tensor");
  mapping_ = mapped.data;
}

safetensors_folder::safetensors_folder(const std::filesystem::path& folder) : folder_(folder) {
  const auto single = folder / "model.safetensors";
  const auto index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(single)) {
    files_.emplace_back(single);
    for (const auto& [name, view] : files_[0].tensors())
      where_[name] = 0;
    return;
  }
  const auto mapping = std::filesystem::exists(index) ? map_file(index.string(), 1) : mapped_file{};
  if (!mapping.data)
    throw user_error(folder.string() + ": has neither model.safetensors nor "
                     "model.safetensors.index.json");
  const auto* text = reinterpret_cast<const char*>(mapping.data.get());
  const auto document = json::parse(text, text + mapping.size, nullptr, false);
  if (document.is_discarded() || !document.is_object() || !document.contains("weight_map")
      || !document["weight_map"].is_object())
    throw user_error(index.string() + ": is no index of shards: it needs an object \"weight_map\"");
  std::map<std::string, std::size_t> shards;
  for (const auto& [name, shard] : document["weight_map"].items()) {
    // A shard's name comes from a file that may have been downloaded: it must not leave the folder.
    if (!shard.is_string() || shard.get<std::string>().find('/') != std::string::npos)
      throw user_error(index.string() + ": tensor \"" + name + "\": its shard " + shard.dump()
                       + " is not a file name");
    const auto [at, added] = shards.try_emplace(shard.get<std::string>(), files_.size());
    if (added)
      files_.emplace_back(folder / at->first);
    if (!files_[at->second].tensors().contains(name))
      throw user_error(files_[at->second].path().string() + ": tensor \"" + name
                       + "\" is missing, though " + index.string() + " lists it there");
    where_[name] = at->second;
  }
}

std::vector<std::string> safetensors_folder::names() const {
  std::vector<std::string> all;
  for (const auto& [name, file] : where_)
    all.push_back(name);
  return all;
}

void safetensors_folder::read(const tensor_view& into) const {
  const auto at = where_.find(into.name);
  if (at == where_.end())
    throw user_error(folder_.string() + ": tensor \"" + into.name + "\" is missing");
  const auto& file = files_[at->second];
  const auto& from = file.tensors().at(into.name);
  if (from.shape != into.shape)
    throw user_error(file.path().string() + ": tensor \"" + into.name + "\" has shape "
                     + shape_text(from.shape) + ", the model needs " + shape_text(into.shape));
  if (!convert_elements(from.data, from.type, into.data, into.type, into.elements()))
    throw user_error(file.path().string() + ": tensor \"" + into.name + "\" has dtype "
                     + safetensors_name(from.type) + ", which cannot become "
                     + safetensors_name(into.type));
  if (const auto i = first_not_finite(into); i < into.elements())
    throw user_error(file.path().string() + ": tensor \"" + into.name + "\": element "
                     + std::to_string(i) + " of " + std::to_string(into.elements())
                     + " is no finite number" + (first_not_finite(from) < from.elements()
                       ? "; did the training that made it diverge?"
                       : std::string(" in ") + safetensors_name(into.type)));
}

void write_safetensors(const std::filesystem::path& path, const std::vector<tensor_view>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty())
    header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const auto& t : tensors) {
    ensure(t.memory == memory_kind::host, "tensor " + t.name + " is not in host memory");
    ensure(!header.contains(t.name), "tensor " + t.name + " is written twice");
    header[t.name] = {{"dtype", safetensors_name(t.type)},
                      {"shape", t.shape},
                      {"data_offsets", {offset, offset + t.bytes()}}};
    offset += t.bytes();
  }
  auto text = header.is_null() ? std::string("{}") : header.dump();
  text.append((8 - text.size() % 8) % 8, ' '); // readers want the data 8-byte aligned
  const std::uint64_t size = text.size();
  atomic_file file(path);
  file.write(&size, 8);
  file.write(text.data(), text.size());
  for (const auto& t : tensors)
    file.write(t.data, t.bytes());
  file.finish();
}

void write_file_atomically(const std::filesystem::path& path, const std::string& content) {
  atomic_file file(path);
  file.write(content.data(), content.size());
  file.finish();
}

} // namespace millrace::model
