#include "actors/commands.hpp"
#include "actors/interrupt.hpp"
#include "actors/openai_server.hpp"
#include "actors/opened_model.hpp"
#include "runtime/error.hpp"

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

namespace millrace {
namespace {

struct serve_arguments {
  engine_arguments engine;
  openai::server_options server;
  std::string name;
  std::size_t queue = 256;
};

bool loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

int serve(const serve_arguments& a) {
  if (a.server.token.empty() && !loopback(a.server.host))
    throw user_error("--host: " + a.server.host + " can be reached by others; give a --token that "
                     "they must show, or stay with 127.0.0.1");
  auto m = open_model(a.engine);
  std::unique_ptr<model::chat_template> chat;
  if (!m.tokens->chat().text.empty())
    try {
      chat = std::make_unique<model::chat_template>(m.tokens->chat());
    } catch (const user_error& e) {
      std::fprintf(stderr, "no /v1/chat/completions: %s\n", e.what());
    }
  auto folder = m.folder.lexically_normal();
  if (!folder.has_filename())
    folder = folder.parent_path();
  openai::served_model served{a.name.empty() ? folder.filename().string() : a.name, m.tokens.get(),
                              chat.get(), m.context, m.config.vocab_size};
  generation::generation_service service(std::move(m.engine), {a.queue});
  openai::server server(a.server, service, served);
  std::printf("serving %s as \"%s\" at http://%s:%d/v1; Ctrl-C ends it\n", m.folder.c_str(),
              served.name.c_str(), a.server.host.c_str(), server.port());
  std::fflush(stdout);
  note_interrupts();
  std::thread watch([&] {
    while (interrupts() == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    server.stop();
  });
  server.run();
  watch.join();
  return 0;
}

} // namespace

void add_serve_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("serve", "Answer OpenAI-style requests over HTTP");
  auto a = std::make_shared<serve_arguments>();
  add_engine_arguments(*cmd, a->engine);
  cmd->add_option("--host", a->server.host, "Address to listen on")->capture_default_str();
  cmd->add_option("--port", a->server.port, "0: any that is free")->check(CLI::Range(0, 65535))
    ->capture_default_str();
  cmd->add_option("--token", a->server.token,
                  "What requests must show, as Authorization: Bearer TOKEN")
    ->envname("MILLRACE_TOKEN");
  cmd->add_option("--name", a->name, "The model's name in requests (default: its folder's)");
  cmd->add_option("--queue", a->queue, "Answers that run or wait, at most; beyond, status 503")
    ->check(CLI::Range(1, 1 << 20))->capture_default_str();
  cmd->callback([a, &status] { status = serve(*a); });
}

} // namespace millrace
