#include "actors/http_message.hpp"

#include <algorithm>
#include <cctype>

namespace millrace {

namespace {

constexpr std::string_view methods[] = {"GET",    "HEAD",    "POST",  "PUT",
                                        "DELETE", "OPTIONS", "PATCH", "CONNECT"};

/// Whether this may be the beginning of a request line.
bool may_be_http(std::string_view bytes) {
  return std::any_of(std::begin(methods), std::end(methods), [&](std::string_view m) {
    auto n = std::min(m.size() + 1, bytes.size());
    return bytes.substr(0, n) == (std::string(m) + " ").substr(0, n);
  });
}

int hex(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

std::string decoded(std::string_view text, bool plus_is_space) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
      out += static_cast<char>(hex(text[i + 1]) * 16 + hex(text[i + 2]));
      i += 2;
    } else {
      out += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

void read_target(std::string_view target, http_request& into) {
  auto question = target.find('?');
  into.path = decoded(target.substr(0, question), false);
  if (question == std::string_view::npos)
    return;
  auto rest = target.substr(question + 1);
  while (!rest.empty()) {
    auto end = std::min(rest.find('&'), rest.size());
    auto pair = rest.substr(0, end);
    auto equals = std::min(pair.find('='), pair.size());
    into.query[decoded(pair.substr(0, equals), true)]
      = decoded(pair.substr(std::min(equals + 1, pair.size())), true);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

/// "GET /metrics HTTP/1.1"
bool read_request_line(std::string_view line, http_request& into) {
  auto first = line.find(' ');
  auto last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || !line.substr(last + 1).starts_with("HTTP/1."))
    return false;
  into.method = line.substr(0, first);
  into.keep_alive = line.substr(last + 1) != "HTTP/1.0";
  auto target = line.substr(first + 1, last - first - 1);
  read_target(target, into);
  return target.starts_with('/');
}

std::string_view reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 503: return "Service Unavailable";
    default: return "Error";
  }
}

} // namespace

http_parse parse_http_request(std::string_view bytes) {
  http_parse out;
  if (!may_be_http(bytes)) {
    out.what = http_parse::state::garbage;
    return out;
  }
  auto end = bytes.find("\r\n\r\n");
  if (end == std::string_view::npos) {
    auto printable = [](unsigned char c) { return c == '\r' || c == '\n' || c == '\t' || c >= 32; };
    if (!std::all_of(bytes.begin(), bytes.end(), printable))
      out.what = http_parse::state::garbage;
    return out;
  }
  out.consumed = end + 4;
  auto head = bytes.substr(0, end + 2);
  auto line = head.substr(0, head.find("\r\n"));
  out.what = http_parse::state::garbage;
  if (!read_request_line(line, out.request))
    return out;
  head.remove_prefix(line.size() + 2);
  while (!head.empty()) {
    line = head.substr(0, head.find("\r\n"));
    head.remove_prefix(line.size() + 2);
    auto colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0)
      return out;
    out.request.headers[lower(line.substr(0, colon))] = trimmed(line.substr(colon + 1));
  }
  auto& h = out.request.headers;
  auto connection = h.contains("connection") ? lower(h["connection"]) : "";
  if (connection == "close")
    out.request.keep_alive = false;
  else if (connection == "keep-alive")
    out.request.keep_alive = true;
  // Nothing here takes a body; what follows one can't be told from it.
  if (h.contains("transfer-encoding") || (h.contains("content-length") && h["content-length"] != "0"))
    out.request.keep_alive = false;
  out.what = http_parse::state::complete;
  return out;
}

std::string to_text(const http_response& r, bool keep_alive, bool with_body) {
  auto out = "HTTP/1.1 " + std::to_string(r.status) + " " + std::string(reason_of(r.status))
             + "\r\nContent-Type: " + r.type + "\r\nContent-Length: " + std::to_string(r.body.size())
             + "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n";
  for (const auto& [name, value] : r.headers)
    out += name + ": " + value + "\r\n";
  out += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  if (with_body)
    out += r.body;
  return out;
}

} // namespace millrace
