#include "actors/monitor.hpp"

#include "actors/dashboard_page.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/exposition.hpp"
#include "runtime/metrics/lookup.hpp"
#include "runtime/natural_order.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <tuple>

#include <pthread.h>
#include <unistd.h>

namespace millrace {

namespace {

constexpr auto json_type = "application/json";

bool is_loopback(std::string_view host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1" || host == "[::1]";
}

/// In time that does not tell how much of it was right.
bool same(std::string_view a, std::string_view b) {
  unsigned char different = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    different |= static_cast<unsigned char>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  return different == 0;
}

/// The host of a Host header, without its port.
std::string_view host_of(std::string_view header) {
  if (header.starts_with('['))
    return header.substr(0, std::min(header.find(']') + 1, header.size()));
  return header.substr(0, header.rfind(':'));
}

/// As the stream goes; of one kind this node's first, then by node and name.
void sort_along_the_stream(std::vector<actor_snapshot>& actors, std::string_view this_node) {
  static constexpr std::string_view order[] = {
    "process", "supervisor", "controller", "generator",    "receiver",  "reward",
    "replay",  "old_logits", "trainer",    "train_worker", "publisher", "evaluator", "recorder"};
  auto rank = [](const actor_snapshot& a) {
    return std::find(std::begin(order), std::end(order), a.kind) - std::begin(order);
  };
  std::sort(actors.begin(), actors.end(), [&](const actor_snapshot& a, const actor_snapshot& b) {
    if (a.kind != b.kind)
      return std::tuple(rank(a), std::string_view(a.kind))
             < std::tuple(rank(b), std::string_view(b.kind));
    if (a.node != b.node)
      return a.node == this_node || (b.node != this_node && natural_order(a.node, b.node) < 0);
    return natural_order(a.name, b.name) < 0;
  });
}

nlohmann::ordered_json to_json(const stall_report& s) {
  nlohmann::ordered_json out{
    {"idle_s", s.idle_s}, {"steps", s.steps}, {"root", s.root}, {"rollouts", s.rollouts}};
  auto& waits = out["waits"] = nlohmann::ordered_json::array();
  for (const auto& w : s.waits)
    waits.push_back({{"owner", w.owner},   {"state", w.state}, {"on", w.on},
                     {"reason", w.reason}, {"age", w.age},     {"silent", w.silent}});
  out["text"] = s.text();
  return out;
}

} // namespace

monitor::monitor(const settings& s, std::filesystem::path directory, std::function<double()> now,
                 std::shared_ptr<snapshot_board> board)
  : options_(s.monitor), directory_(std::move(directory)), now_(std::move(now)), began_(now_()),
    tree_(std::make_shared<node_tree>(std::move(board))), process_(*tree_->local(), began_),
    series_(began_), stalls_(s.supervisor.stall_report_s, began_) {
  run_ = {{"directory", std::filesystem::absolute(directory_).string()},
          {"pid", ::getpid()},
          {"steps", s.run.steps},
          {"eta", s.rollout.eta},
          {"batch_size", s.rollout.batch_size},
          {"group_size", s.rollout.group_size}};
  if (options_.enabled) {
    try {
      server_ = std::make_unique<http_server>(
        options_.host, options_.port, [this](const http_request& r) { return answer(r); },
        [this](std::string_view reason) { process_.metrics().add(metrics::http_dropped, reason, 1); });
      announce();
    } catch (const user_error& e) {
      if (options_.port != 0)
        throw;
      log::warning("monitor", std::string(e.what()) + "; going on unwatched");
    }
  }
  pulse_ = std::jthread([this](const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "monitor-pulse");
    while (!stop.stop_requested()) {
      look();
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
    }
  });
}

monitor::~monitor() {
  pulse_.request_stop();
  pulse_.join();
  server_.reset();
  std::error_code ignored;
  std::filesystem::remove(directory_ / "monitor.json", ignored);
}

std::int64_t monitor::step() const {
  std::lock_guard lock(mutex_);
  return step_;
}

std::string monitor::url() const {
  if (!server_)
    return {};
  auto host = options_.host == "0.0.0.0" || options_.host == "::" ? "127.0.0.1" : options_.host;
  if (host.find(':') != std::string::npos)
    host = "[" + host + "]";
  return "http://" + host + ":" + std::to_string(server_->port()) + "/";
}

void monitor::announce() const {
  nlohmann::ordered_json j{{"url", url()}, {"pid", ::getpid()}};
  if (!options_.token.empty())
    j["token"] = options_.token;
  auto file = directory_ / "monitor.json";
  std::ofstream out(file);
  std::error_code ignored; // a file system without permissions has no strangers either
  using std::filesystem::perms;
  std::filesystem::permissions(file, perms::owner_read | perms::owner_write, ignored);
  out << j.dump(2) << "\n";
}

void monitor::look() {
  board()->ask_all();
  auto now = now_();
  process_.refresh(board()->snapshots(now), now);
  if (server_)
    process_.metrics().set(metrics::http_open, static_cast<double>(server_->open()));
  auto actors = tree_->all(now);
  std::optional<stall_report> fresh;
  bool began_to_stall = false;
  {
    std::lock_guard lock(mutex_);
    series_.sample(actors, now);
    step_ = std::max(step_,
                     static_cast<std::int64_t>(largest(actors, metrics::stream_version)));
    auto trains = std::any_of(actors.begin(), actors.end(),
                              [](const actor_snapshot& a) { return a.kind == "trainer"; });
    if (trains)
      fresh = stalls_.look(actors, now);
    began_to_stall = fresh && !stall_;
    if (!trains || !stalls_.stalled()) {
      stall_.reset();
    } else {
      stall_ = wait_graph(actors);
      stall_->idle_s = stalls_.idle_s();
    }
  }
  if (began_to_stall)
    process_.metrics().add(metrics::stalls);
  if (fresh)
    log::warning("stall", fresh->text());
}

bool monitor::allowed(const http_request& r) const {
  if (options_.token.empty())
    return true;
  if (auto at = r.headers.find("authorization");
      at != r.headers.end() && at->second.starts_with("Bearer "))
    return same(at->second.substr(7), options_.token);
  auto at = r.query.find("token"); // for browsers
  return at != r.query.end() && same(at->second, options_.token);
}

http_response monitor::answer(const http_request& r) {
  auto out = page_for(r);
  process_.metrics().add(metrics::http_requests,
                         out.status == 401 || out.status == 403 ? "unauthorized"
                         : out.status == 404                    ? "not found"
                                                                : "served",
                         1);
  return out;
}

http_response monitor::page_for(const http_request& r) {
  // A page of another site must not read this through the user's browser under a name that it
  // lets point here.
  if (auto host = r.headers.find("host");
      is_loopback(options_.host) && host != r.headers.end() && !is_loopback(host_of(host->second)))
    return {403, "text/plain", "this process answers to localhost only\n"};
  if (!allowed(r))
    return {401, "text/plain", "a token is needed: Authorization: Bearer TOKEN (monitor.token)\n",
            {{"WWW-Authenticate", "Bearer"}}};
  if (r.path == "/")
    return {200, "text/html; charset=utf-8", std::string(dashboard_page())};
  if (r.path == "/metrics")
    return {200, "text/plain; version=0.0.4; charset=utf-8", prometheus_text(tree_->all(now_()))};
  if (r.path == "/introspect")
    return {200, json_type,
            introspect().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"};
  if (r.path == "/healthz")
    return health();
  if (r.path == "/series") {
    std::lock_guard lock(mutex_);
    return {200, json_type, series_.to_json().dump() + "\n"};
  }
  return {404, "text/plain", "there are /, /metrics, /introspect, /series and /healthz here\n"};
}

nlohmann::ordered_json monitor::introspect() {
  auto now = now_();
  nlohmann::ordered_json out{{"run", run_}};
  out["run"]["up_s"] = now - began_;
  {
    std::lock_guard lock(mutex_);
    out["run"]["step"] = step_;
    const auto& r = series_.rates();
    out["rates"] = {{"generated", r.generated},     {"trained", r.trained},
                    {"useful", r.useful},           {"reprefilled", r.reprefilled},
                    {"discarded", r.discarded},     {"rollouts", r.rollouts},
                    {"steps", r.steps}};
    out["stall"] = stall_ ? to_json(*stall_) : nlohmann::ordered_json(nullptr);
  }
  auto sorted = tree_->all(now);
  sort_along_the_stream(sorted, board()->node());
  auto& actors = out["actors"] = nlohmann::ordered_json::array();
  for (const auto& a : sorted)
    actors.push_back(millrace::to_json(a));
  return out;
}

http_response monitor::health() {
  std::lock_guard lock(mutex_);
  if (stall_)
    return {503, "text/plain; charset=utf-8", stall_->text() + "\n"};
  return {200, "text/plain; charset=utf-8", "ok\n"};
}

} // namespace millrace
