#include "rollout/openai_engine.hpp"
#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

namespace millrace::generation {

openai_endpoint openai_endpoint::from(const nlohmann::json& params) {
  const std::string where = "generator.backend.params";
  openai_endpoint e;
  if (!params.is_object())
    throw user_error(where + ": found " + params.dump() + ", expected an object");
  for (const auto& [name, v] : params.items()) {
    auto* text = name == "endpoint" ? &e.url : name == "token" ? &e.token
                 : name == "model" ? &e.model : name == "reload" ? &e.reload
                 : name == "reload_field" ? &e.reload_field : nullptr;
    if (name == "timeout_s" && v.is_number() && v.get<double>() >= 1)
      e.timeout_s = v.get<double>();
    else if (name == "folder" && v.is_string())
      e.folder = v.get<std::string>();
    else if (text && v.is_string())
      *text = v.get<std::string>();
    else
      throw user_error(where + "." + name + ": found " + v.dump() + "; expected endpoint, folder, "
                       "token, model, reload and reload_field as strings, and timeout_s as a "
                       "number from 1");
  }
  if (!e.url.starts_with("http://") && !e.url.starts_with("https://"))
    throw user_error(where + ".endpoint: found \"" + e.url + "\", expected http://HOST:PORT");
  if (e.folder.empty())
    throw user_error(where
                     + ".folder: expected a folder that the server too can read, for weights");
  return e;
}

} // namespace millrace::generation
