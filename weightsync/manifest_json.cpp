#include "runtime/error.hpp"
#include "weightsync/dtype_names.hpp"
#include "weightsync/manifest.hpp"

#include <nlohmann/json.hpp>

namespace millrace::weightsync {

namespace {

using nlohmann::json;

std::string hex(const std::string& bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (unsigned char c : bytes) {
    text += digits[c >> 4U];
    text += digits[c & 15U];
  }
  return text;
}

int digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  throw user_error(std::string("weight manifest: '") + c + "' is not a hexadecimal digit");
}

std::string unhex(const std::string& text) {
  if (text.size() % 2 != 0)
    throw user_error("weight manifest: hexadecimal text of odd length");
  std::string bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 0; i < text.size(); i += 2)
    bytes += static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1]));
  return bytes;
}

// JSON numbers are doubles to many readers, which lose the low bits of 64-bit values.
std::string hex64(std::uint64_t x) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8)
    bytes += static_cast<char>((x >> shift) & 255U);
  return hex(bytes);
}

std::uint64_t unhex64(const std::string& text) {
  auto bytes = unhex(text);
  if (bytes.size() != 8)
    throw user_error("weight manifest: " + text + " is not a 64-bit number in hexadecimal");
  std::uint64_t x = 0;
  for (unsigned char c : bytes)
    x = x << 8U | c;
  return x;
}

json shard_to_json(const shard& s) {
  json j = {{"owner", s.owner},   {"axis", s.part.axis},     {"begin", s.part.begin},
            {"end", s.part.end},  {"first", s.part.first},   {"count", s.part.count},
            {"offset", s.offset}, {"length", s.length},      {"checksum", hex64(s.checksum)}};
  if (!s.scales.empty())
    j["scales"] = s.scales;
  if (s.delta.length > 0)
    j["delta"] = {{"offset", s.delta.offset},
                  {"length", s.delta.length},
                  {"checksum", hex64(s.delta.checksum)}};
  return j;
}

shard shard_from_json(const json& j) {
  shard s;
  j.at("owner").get_to(s.owner);
  j.at("axis").get_to(s.part.axis);
  j.at("begin").get_to(s.part.begin);
  j.at("end").get_to(s.part.end);
  j.at("first").get_to(s.part.first);
  j.at("count").get_to(s.part.count);
  j.at("offset").get_to(s.offset);
  j.at("length").get_to(s.length);
  s.checksum = unhex64(j.at("checksum").get<std::string>());
  if (j.contains("scales"))
    j.at("scales").get_to(s.scales);
  if (j.contains("delta")) {
    const auto& d = j.at("delta");
    d.at("offset").get_to(s.delta.offset);
    d.at("length").get_to(s.delta.length);
    s.delta.checksum = unhex64(d.at("checksum").get<std::string>());
  }
  return s;
}

json owner_to_json(const remote_region& o) {
  return {{"transport", o.transport},     {"peer", hex(o.peer)}, {"key", hex(o.key)},
          {"address", hex64(o.address)}, {"bytes", o.bytes},
          {"memory", o.memory == memory_kind::cuda ? "cuda" : "host"}};
}

remote_region owner_from_json(const json& j) {
  remote_region o;
  j.at("transport").get_to(o.transport);
  o.peer = unhex(j.at("peer").get<std::string>());
  o.key = unhex(j.at("key").get<std::string>());
  o.address = unhex64(j.at("address").get<std::string>());
  j.at("bytes").get_to(o.bytes);
  auto memory = j.at("memory").get<std::string>();
  if (memory != "host" && memory != "cuda")
    throw user_error("weight manifest: memory is \"" + memory + "\", expected host or cuda");
  o.memory = memory == "cuda" ? memory_kind::cuda : memory_kind::host;
  return o;
}

} // namespace

json to_json(const manifest& m) {
  json owners = json::array();
  for (const auto& o : m.owners)
    owners.push_back(owner_to_json(o));
  json tensors = json::array();
  for (const auto& t : m.tensors) {
    json shards = json::array();
    for (const auto& s : t.shards)
      shards.push_back(shard_to_json(s));
    tensors.push_back({{"name", t.name},
                       {"dtype", to_string(t.type)},
                       {"shape", t.shape},
                       {"shards", std::move(shards)}});
  }
  return {{"version", m.number.value}, {"delta_base", m.delta_base.value}, {"owners", std::move(owners)},
          {"tensors", std::move(tensors)}};
}

manifest manifest_from_json(const json& j) {
  manifest m;
  try {
    j.at("version").get_to(m.number.value);
    j.at("delta_base").get_to(m.delta_base.value);
    for (const auto& o : j.at("owners"))
      m.owners.push_back(owner_from_json(o));
    for (const auto& t : j.at("tensors")) {
      tensor_entry entry;
      t.at("name").get_to(entry.name);
      entry.type = dtype_from_string(t.at("dtype").get<std::string>());
      t.at("shape").get_to(entry.shape);
      for (const auto& s : t.at("shards"))
        entry.shards.push_back(shard_from_json(s));
      m.tensors.push_back(std::move(entry));
    }
  } catch (const json::exception& e) {
    throw user_error(std::string("weight manifest: ") + e.what());
  }
  validate(m);
  return m;
}

} // namespace millrace::weightsync
