#include "actors/openai_server.hpp"

#include "actors/client_connection.hpp"
#include "actors/openai_fields.hpp"
#include "runtime/error.hpp"
#include "runtime/model/answer_text.hpp"
#include "runtime/model/weight_transfer.hpp"

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <random>
#include <utility>

namespace millrace::openai {
namespace {

std::int64_t now_s() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

std::string dumped(const json& j) { return j.dump(-1, ' ', false, json::error_handler_t::replace); }

void answer(httplib::Response& out, int status, const json& body) {
  out.status = status;
  out.set_content(dumped(body), "application/json");
}

/// One request's answers while they are made.
struct exchange {
  completion_request request;
  completion_writer writer;
  std::vector<generation::generation_service::ticket> tickets; ///< one for each prompt
  std::int64_t prompt_tokens = 0, answer_tokens = 0;
  std::atomic<bool>* stopping;

  exchange(completion_request r, const served_model& served, const std::string& id)
    : request(std::move(r)), writer(request, served, id, now_s()) {}

  /// Waits for answer parts and hands them to `take`, until all are finished. False when the client
  /// has gone, as `gone` says while nothing comes, or `take` by false.
  template <class Gone, class Take>
  bool follow(Gone&& gone, Take&& take) {
    for (std::size_t p = 0; p < tickets.size(); ++p)
      for (std::int32_t open = request.n; open > 0;) {
        auto u = tickets[p].next(0.1);
        if (*stopping)
          throw api_error(503, "the server is stopping", "", "server_error");
        if (!u) {
          if (gone())
            return false;
          continue;
        }
        if (!u->error.empty())
          throw api_error(500, u->error, "", "server_error");
        answer_tokens += static_cast<std::int64_t>(u->tokens.size());
        if (u->youngest != no_version)
          writer.sampled_by(u->youngest);
        if (!take(static_cast<std::int32_t>(p) * request.n + u->index, *u))
          return false;
        open -= u->finish != finish_reason::none ? 1 : 0;
      }
    return true;
  }
};

/// Answers when all is there: the status says how it went.
void answer_whole(exchange& x, const httplib::Request& in, httplib::Response& out) {
  std::vector<json> choices(static_cast<std::size_t>(x.request.n) * x.tickets.size());
  const client_connection client(in);
  const bool there = x.follow(
    [&] { return client.closed(); },
    [&](std::int32_t index, const generation::answer_update& u) {
      choices[static_cast<std::size_t>(index)]
        = x.writer.choice(index, {u.text, u.tokens, u.logp, u.likeliest}, u.finish);
      return true;
    });
  if (there)
    answer(out, 200, x.writer.response(json(choices), x.prompt_tokens, x.answer_tokens));
}

bool write_event(httplib::DataSink& sink, const std::string& data) {
  const auto text = "data: " + data + "\n\n";
  return sink.write(text.data(), text.size()) && sink.is_writable();
}

void write_stream(exchange& x, httplib::DataSink& sink, const model::tokenizer& tokens) {
  struct told {
    model::answer_text text;
    bool begun = false;
    std::int64_t characters = 0;
  };
  std::vector<told> answers;
  for (std::size_t i = 0; i < static_cast<std::size_t>(x.request.n) * x.tickets.size(); ++i)
    answers.push_back({model::answer_text(tokens, x.request.sampling.stop)});
  std::vector<std::int32_t> counts(answers.size());
  const auto gone = [&] { return !sink.is_writable(); };
  const bool there = x.follow(gone, [&](std::int32_t index, const generation::answer_update& u) {
    auto& a = answers[static_cast<std::size_t>(index)];
    auto& count = counts[static_cast<std::size_t>(index)];
    told_tokens t{{}, u.tokens, u.logp, u.likeliest, a.characters};
    if (x.request.logprobs)
      a.characters += x.writer.characters_of(u.tokens);
    for (const auto token : u.tokens)
      t.text += a.text.add(token, ++count >= x.request.sampling.min_tokens);
    const bool ends = u.finish != finish_reason::none;
    if (ends)
      t.text += a.text.finish();
    if (t.text.empty() && !ends && !x.request.logprobs)
      return true; // within a character, or what may become a stop string
    return write_event(sink, dumped(x.writer.chunk(index, t, u.finish,
                                                   !std::exchange(a.begun, true))));
  });
  if (!there)
    return;
  if (x.request.include_usage)
    write_event(sink, dumped(x.writer.usage_chunk(x.prompt_tokens, x.answer_tokens)));
  write_event(sink, "[DONE]");
}

} // namespace

struct server::parts {
  server_options options;
  generation::generation_service& service;
  served_model served;
  httplib::Server http;
  int port = 0;
  std::atomic<bool> stopping{false};
  std::atomic<std::uint64_t> requests{0};
  std::int64_t began = now_s();

  parts(const server_options& o, generation::generation_service& g, const served_model& m)
    : options(o), service(g), served(m) {
    served.specials = special_names(*served.tokens);
    served.run = std::random_device{}();
  }

  void routes();
  void complete(const httplib::Request& in, httplib::Response& out, bool chat);
  void reload(const httplib::Request& in, httplib::Response& out);
  std::uint64_t fresh_seed() {
    std::random_device device;
    return std::uint64_t{device()} << 32 | device();
  }
};

void server::parts::complete(const httplib::Request& in, httplib::Response& out, bool chat) {
  auto request = read_completion(in.body, served, chat);
  if (!request.has_seed)
    request.sampling.seed = fresh_seed();
  const auto id = (chat ? "chatcmpl-" : "cmpl-") + std::to_string(served.run) + "-"
                  + std::to_string(++requests);
  auto x = std::make_shared<exchange>(std::move(request), served, id);
  x->stopping = &stopping;
  for (const auto& p : x->request.prompts) {
    x->prompt_tokens += static_cast<std::int64_t>(p.size());
    auto t = service.start(p, x->request.sampling, x->request.n, x->request.stream,
                           static_cast<std::size_t>(x->request.top_logprobs));
    if (!t)
      throw api_error(503, "the server is busy: its queue is full", "", "server_error");
    x->tickets.push_back(std::move(*t));
  }
  if (!x->request.stream) {
    answer_whole(*x, in, out);
    return;
  }
  out.set_chunked_content_provider(
    "text/event-stream", [this, x](std::size_t, httplib::DataSink& sink) {
      try {
        write_stream(*x, sink, *served.tokens);
      } catch (const api_error& e) { // the status has been sent already
        write_event(sink, dumped(e.body()));
        write_event(sink, "[DONE]");
      }
      x->tickets.clear(); // cancels what is left
      sink.done();
      return true;
    });
}

void server::parts::reload(const httplib::Request& in, httplib::Response& out) {
  const auto body = parsed(in.body);
  if (!body.is_object() || !body.contains("path") || !body["path"].is_string())
    throw api_error(400, "expected {\"path\": \"a model folder on the server's machine\"}", "path");
  try {
    const auto v = service.reload([&](const std::vector<tensor_view>& into) {
      model::load_weights(body["path"].get<std::string>(), into);
    });
    answer(out, 200, {{"version", v.value}, {"path", body["path"]},
                      {"system_fingerprint", system_fingerprint(served.run, v)}});
  } catch (const user_error& e) {
    throw api_error(400, e.what(), "path");
  }
}

void server::parts::routes() {
  const auto guarded = [](auto&& handler) {
    return [handler](const httplib::Request& in, httplib::Response& out) {
      try {
        handler(in, out);
      } catch (const api_error& e) {
        answer(out, e.status, e.body());
      } catch (const std::exception& e) {
        answer(out, 500, api_error(500, e.what(), "", "server_error").body());
      }
    };
  };
  // Before the body is read: what is packed could be larger than any limit.
  http.set_pre_routing_handler([this](const httplib::Request& in, httplib::Response& out) {
    if (in.path != "/health" && !options.token.empty()
        && in.get_header_value("Authorization") != "Bearer " + options.token)
      answer(out, 401, api_error(401, "expected the header Authorization: Bearer TOKEN, with the "
                                      "server's token", "", "authentication_error",
                                 "invalid_api_key").body());
    else if (in.has_header("Content-Encoding"))
      answer(out, 415, api_error(415, "Content-Encoding: found \""
                                        + in.get_header_value("Content-Encoding")
                                        + "\", expected a body that is not packed").body());
    else if (in.method == "POST" && !in.has_header("Content-Length")
             && !in.has_header("Transfer-Encoding")) // its end would never come
      answer(out, 411, api_error(411, "Content-Length: found none, expected a body").body());
    else
      return httplib::Server::HandlerResponse::Unhandled;
    return httplib::Server::HandlerResponse::Handled;
  });
  http.Get("/health", [this](const httplib::Request&, httplib::Response& out) {
    const auto s = service.statistics();
    answer(out, 200, {{"status", "ok"}, {"outstanding", service.outstanding()},
                      {"sampled_tokens", s.sampled_tokens}, {"steps", s.steps}});
  });
  http.Get("/v1/models", guarded([this](const httplib::Request&, httplib::Response& out) {
    answer(out, 200, {{"object", "list"},
                      {"data", json::array({{{"id", served.name}, {"object", "model"},
                                             {"created", began}, {"owned_by", "millrace"},
                                             {"max_model_len", served.context}}})}});
  }));
  http.Post("/v1/completions", guarded([this](const httplib::Request& in, httplib::Response& out) {
    complete(in, out, false);
  }));
  http.Post("/v1/chat/completions",
            guarded([this](const httplib::Request& in, httplib::Response& out) {
              complete(in, out, true);
            }));
  http.Post("/reload", guarded([this](const httplib::Request& in, httplib::Response& out) {
    reload(in, out);
  }));
  http.set_error_handler([](const httplib::Request& in, httplib::Response& out) {
    if (out.body.empty())
      answer(out, out.status, api_error(out.status, out.status == 404
                                          ? "there is no " + in.method + " " + in.path
                                          : "the request can't be read").body());
  });
}

server::server(const server_options& options, generation::generation_service& service,
               const served_model& served)
  : parts_(std::make_unique<parts>(options, service, served)) {
  auto& p = *parts_;
  p.routes();
  p.http.new_task_queue = [n = options.connections] { return new httplib::ThreadPool(n); };
  p.http.set_payload_max_length(options.body_bytes);
  p.http.set_read_timeout(10);
  p.http.set_write_timeout(10);
  p.http.set_keep_alive_timeout(5);
  p.http.set_tcp_nodelay(true);
  p.http.set_socket_options([](socket_t s) { // not the library's SO_REUSEPORT: one server a port
    const int on = 1;
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
  if (options.port == 0)
    p.port = p.http.bind_to_any_port(options.host);
  else
    p.port = p.http.bind_to_port(options.host, options.port) ? options.port : -1;
  if (p.port < 0)
    throw user_error("can't listen on " + options.host + ":" + std::to_string(options.port)
                     + "; is another program there already?");
}

server::~server() { stop(); }

int server::port() const { return parts_->port; }
void server::run() { parts_->http.listen_after_bind(); }

void server::stop() {
  parts_->stopping = true;
  parts_->http.stop();
}

} // namespace millrace::openai
