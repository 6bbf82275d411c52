#pragma once

// The little of HTTP/1.1 that a monitor needs: requests without a body in, responses out. Pure text.

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace millrace {

struct http_request {
  std::string method; ///< "GET"
  std::string path;   ///< decoded, without the query: "/metrics"
  std::map<std::string, std::string> query;
  std::map<std::string, std::string> headers; ///< names in lower case
  bool keep_alive = true;
};

struct http_response {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  std::map<std::string, std::string> headers = {}; ///< further ones
};

struct http_parse {
  enum class state {
    incomplete, ///< so far so good
    complete,
    garbage ///< no HTTP: not worth an answer
  };
  state what = state::incomplete;
  http_request request;     ///< when complete
  std::size_t consumed = 0; ///< bytes of it, when complete
};

/// Reads one request from the front of what came. Garbage is told from the first bytes on.
[[nodiscard]] http_parse parse_http_request(std::string_view bytes);

/// With its head; the body is left out for HEAD.
[[nodiscard]] std::string to_text(const http_response& r, bool keep_alive, bool with_body);

} // namespace millrace
