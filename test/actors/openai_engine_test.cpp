// An engine whose tokens come from a server with OpenAI's API: `millrace serve`, in this process.

#include "rollout/openai_engine.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "test/actors/serving_fixture.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

using namespace millrace;
using namespace millrace::openai;
using test::answered, test::model_folder, test::running_server;
using test::ascii_piece;
namespace fs = std::filesystem;

TEST_CASE("behind a server tokens and versions are true over a change of weights") {
  const model_folder one(7), two(8);
  running_server s(two); // whatever it has at first
  const auto folder = one.path() / "published";
  const auto endpoint = generation::openai_endpoint::from(
    {{"endpoint", s.url()}, {"folder", folder.string()}});
  generation::engine_options o;
  o.max_batch = 4;
  const auto e = generation::make_openai_engine(endpoint, o, one.config, one.tokens);
  model::load_checkpoint(one.path(), e->staging());
  e->install({3});
  const auto prompt = one.tokens->encode("one two");
  const auto direct = answered(*one.loaded(), prompt, {.temperature = 0, .max_tokens = 24});
  auto r = answered(*e, prompt, {.temperature = 0, .max_tokens = 24});
  REQUIRE(r.tokens == direct.tokens);
  REQUIRE(r.text == direct.text);
  REQUIRE(r.finish == direct.finish);
  REQUIRE(r.versions.back() == 3);

  // Interrupted: every token is what its version's weights give, by log-prob.
  rollout long_one;
  long_one.id = {9, 0};
  long_one.prompt_length = static_cast<std::int32_t>(prompt.size());
  long_one.tokens = prompt;
  long_one.behaviour_logp.assign(prompt.size(), 0);
  long_one.versions.assign(prompt.size(), -1);
  e->submit({long_one, {.temperature = 0, .max_tokens = 3000, .ignore_eos = true}});
  while (e->step().empty() && e->partials()[0].generated() < 10) {
  }
  REQUIRE(e->partials().size() == 1);
  model::load_checkpoint(two.path(), e->staging());
  const auto report = e->install({4});
  REQUIRE(report.running == 1);
  std::vector<rollout> done;
  while (done.empty())
    done = e->step();
  REQUIRE(done[0].generated() == 3000);
  REQUIRE(done[0].oldest() == version{3});
  REQUIRE(done[0].youngest() == version{4});
  std::size_t change = prompt.size();
  while (done[0].versions[change] == 3)
    ++change;
  const std::vector<std::int32_t> so_far(done[0].tokens.begin(),
                                         done[0].tokens.begin() + static_cast<std::ptrdiff_t>(change));
  const auto rest = answered(*two.loaded(), so_far, {.temperature = 0, .max_tokens = 8,
                                                     .ignore_eos = true});
  for (std::size_t i = 0; i < 8; ++i)
    REQUIRE(rest.tokens[change + i] == done[0].tokens[change + i]);
  REQUIRE_FALSE(fs::exists(folder / "v3"));

  // Stop strings are this side's.
  r = answered(*e, prompt, {.temperature = 0, .max_tokens = 24});
  const auto stop = ascii_piece(r.text);
  const auto cut = answered(*e, prompt, {.temperature = 0, .max_tokens = 24, .stop = {stop}});
  REQUIRE(cut.finish == finish_reason::stop);
  REQUIRE(cut.text == r.text.substr(0, r.text.find(stop)));
  REQUIRE(s.falls_idle());
}

TEST_CASE("a server that is started anew samples nothing before it has the right weights again") {
  const model_folder one(7), two(8);
  auto s = std::make_unique<running_server>(two);
  const int port = s->http.port();
  const auto renew = [&] {
    s.reset();
    s = std::make_unique<running_server>(two, 64, "", port);
  };
  const auto e = generation::make_openai_engine(
    generation::openai_endpoint::from({{"endpoint", s->url()},
                                       {"folder", (one.path() / "published").string()}}),
    {.max_batch = 4}, one.config, one.tokens);
  std::vector<std::string> said;
  log::set_screen([&](std::string_view line) { said.emplace_back(line); });
  model::load_checkpoint(one.path(), e->staging());
  e->install({3});
  const auto prompt = one.tokens->encode("one two");
  sampling_params sampling{.temperature = 0, .max_tokens = 3000, .ignore_eos = true};
  // In the middle of an answer, of which what has come is kept.
  rollout r;
  r.prompt_length = static_cast<std::int32_t>(prompt.size());
  r.tokens = prompt;
  r.behaviour_logp.assign(prompt.size(), 0);
  r.versions.assign(prompt.size(), -1);
  e->submit({r, sampling});
  while (e->partials().empty() || e->partials()[0].generated() < 10)
    REQUIRE(e->step().empty());
  renew();
  std::vector<rollout> done;
  while (done.empty())
    done = e->step();
  REQUIRE(done[0].tokens == answered(*one.loaded(), prompt, sampling).tokens);
  REQUIRE(done[0].oldest() == version{3});
  REQUIRE(said.size() == 2);
  REQUIRE(said[0].find("1 answers wait for it") != std::string::npos);
  REQUIRE(said[1].find("it is there now") != std::string::npos);
  // And while nothing ran, so that no connection broke.
  renew();
  sampling.max_tokens = 40;
  REQUIRE(answered(*e, prompt, sampling).tokens
          == answered(*one.loaded(), prompt, sampling).tokens);
  REQUIRE(said.size() == 4);
  REQUIRE(said[2].find("has it been started anew") != std::string::npos);
  // Away when new weights come: they are waited for.
  s.reset();
  model::load_checkpoint(two.path(), e->staging());
  e->install({4});
  REQUIRE(e->step().empty());
  s = std::make_unique<running_server>(one, 64, "", port);
  const auto last = answered(*e, prompt, sampling);
  REQUIRE(last.tokens == answered(*two.loaded(), prompt, sampling).tokens);
  REQUIRE(last.oldest() == version{4});
  log::set_screen({});
}

TEST_CASE("a server that stays away is an error with its address, after the time that was given") {
  const model_folder m(9);
  auto s = std::make_unique<running_server>(m);
  const auto url = s->url();
  const auto e = generation::make_openai_engine(
    generation::openai_endpoint::from({{"endpoint", url}, {"timeout_s", 1},
                                       {"folder", (m.path() / "x").string()}}),
    {.max_batch = 2}, m.config, m.tokens);
  model::load_checkpoint(m.path(), e->staging());
  e->install({0});
  s.reset();
  log::set_screen([](std::string_view) {});
  try {
    answered(*e, {1, 2}, {.max_tokens = 3});
    FAIL("no error");
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    INFO(text);
    REQUIRE(text.find(url) != std::string::npos);
    REQUIRE(text.find("timeout_s") != std::string::npos);
  }
  REQUIRE(e->drain().size() == 1);
  log::set_screen({});
}

namespace {

/// Takes requests, and never answers those for this path.
class hanging_server {
public:
  explicit hanging_server(const char* path) {
    server_.Post(path, [this](const httplib::Request&, httplib::Response&) {
      while (!over_)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    });
    server_.Post("/reload", [](const httplib::Request&, httplib::Response& out) {
      out.set_content("{}", "application/json");
    });
    url_ = "http://127.0.0.1:" + std::to_string(server_.bind_to_any_port("127.0.0.1"));
    thread_ = std::thread([this] { server_.listen_after_bind(); });
  }
  ~hanging_server() {
    over_ = true;
    server_.stop();
    thread_.join();
  }
  [[nodiscard]] const std::string& url() const { return url_; }

private:
  std::atomic<bool> over_{false};
  httplib::Server server_;
  std::string url_;
  std::thread thread_;
};

} // namespace

TEST_CASE("a request that is ended while it is only being made holds nobody up") {
  const model_folder m(9);
  const hanging_server stalls("/v1/completions"); // once it has the weights
  const auto e = generation::make_openai_engine(
    generation::openai_endpoint::from({{"endpoint", stalls.url()}, {"timeout_s", 600},
                                       {"folder", (m.path() / "x").string()}}),
    {.max_batch = 2}, m.config, m.tokens);
  model::load_checkpoint(m.path(), e->staging());
  e->install({0});
  rollout r;
  r.prompt_length = 1;
  r.tokens = {1};
  r.behaviour_logp = {0};
  r.versions = {-1};
  e->submit({r, {.max_tokens = 3}});
  CHECK(e->step().empty());
  const auto began = std::chrono::steady_clock::now();
  e->install({1}); // the request is made anew,
  CHECK(e->drain().size() == 1); // and ended at once
  CHECK(std::chrono::steady_clock::now() - began < test::patience); // not the endpoint's timeout
}

TEST_CASE("a server that isn't up yet is waited for, which the log says") {
  const model_folder one(7), two(8);
  auto s = std::make_unique<running_server>(two);
  const int port = s->http.port();
  const auto e = generation::make_openai_engine(
    generation::openai_endpoint::from({{"endpoint", s->url()},
                                       {"folder", (one.path() / "published").string()}}),
    {.max_batch = 4}, one.config, one.tokens);
  REQUIRE(s->client().Get("/health")); // one that doesn't listen yet can't be stopped
  s.reset();
  std::vector<std::string> said;
  log::set_screen([&](std::string_view line) { said.emplace_back(line); });
  model::load_checkpoint(one.path(), e->staging());
  e->install({3});
  REQUIRE_FALSE(e->waits_for().empty());
  REQUIRE(e->step().empty());
  REQUIRE(said.size() == 1);
  REQUIRE(said[0].find("nobody takes a connection there; it is waited for, 60.0 s at most")
          != std::string::npos);
  s = std::make_unique<running_server>(two, 64, "", port);
  const auto prompt = one.tokens->encode("one two");
  const sampling_params sampling{.temperature = 0, .max_tokens = 40};
  REQUIRE(answered(*e, prompt, sampling).tokens
          == answered(*one.loaded(), prompt, sampling).tokens);
  REQUIRE(said.size() == 2);
  REQUIRE(said[1].find("it is there now") != std::string::npos);
  log::set_screen({});
}

TEST_CASE("a server that takes connections and then hangs is an error, after the time that was given") {
  const model_folder m(9);
  const hanging_server hangs("/reload");
  const auto e = generation::make_openai_engine(
    generation::openai_endpoint::from({{"endpoint", hangs.url()}, {"timeout_s", 1},
                                       {"folder", (m.path() / "x").string()}}),
    {.max_batch = 2}, m.config, m.tokens);
  model::load_checkpoint(m.path(), e->staging());
  std::string said, why;
  log::set_screen([&](std::string_view line) { said += line; });
  e->install({0});
  try {
    answered(*e, {1, 2}, {.max_tokens = 3});
  } catch (const std::runtime_error& error) {
    why = error.what();
  }
  log::set_screen({});
  INFO(said << "\n" << why);
  for (const auto& text : {said, why}) {
    REQUIRE(text.find(hangs.url() + ": /reload: it took the request, but said nothing for 1 s")
            != std::string::npos);
    REQUIRE(text.find("(generator.backend.params.timeout_s)") != std::string::npos);
  }
}

TEST_CASE("the parameters of a server that can't be are refused") {
  REQUIRE_THROWS_AS(generation::openai_endpoint::from({{"endpoint", "x"}}), user_error);
  REQUIRE_THROWS_AS(generation::openai_endpoint::from({{"endpoint", "http://h"}}), user_error);
  REQUIRE_THROWS_AS(generation::openai_endpoint::from({{"endpiont", "http://h"}}), user_error);
}
