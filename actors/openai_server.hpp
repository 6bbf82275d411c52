#pragma once

#include "actors/openai_protocol.hpp"
#include "rollout/generation_service.hpp"

#include <memory>
#include <string>

namespace millrace::openai {

struct server_options {
  std::string host = "127.0.0.1";
  int port = 8000; ///< 0: any that is free
  std::string token; ///< requests must carry "Authorization: Bearer TOKEN"; empty: none
  std::size_t connections = 128; ///< served at a time; others wait
  std::size_t body_bytes = 16U << 20; ///< of a request, at most
};

/// OpenAI's API over a generation service: GET /health, GET /v1/models, POST /v1/completions,
/// POST /v1/chat/completions, and POST /reload {"path": FOLDER}, which takes new weights. A client
/// that goes away cancels what it asked for. What fails is answered with its status; in a stream,
/// whose status is out by then, with an event that has "error", and the stream's end.
class server {
public:
  /// Binds the address. The service and what `served` points to must outlive it. Throws user_error
  /// when the address can't be had.
  server(const server_options& options, generation::generation_service& service,
         const served_model& served);
  ~server();
  server(const server&) = delete;
  server& operator=(const server&) = delete;

  [[nodiscard]] int port() const;
  /// Answers requests until stop() is called.
  void run();
  /// From any thread.
  void stop();

private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

} // namespace millrace::openai
