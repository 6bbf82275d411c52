// `millrace up`: all nodes of a cluster that belong to this host, as processes of their own.

#include "actors/commands.hpp"
#include "actors/interrupt.hpp"
#include "actors/node_link.hpp"
#include "actors/node_processes.hpp"
#include "actors/run_arguments.hpp"
#include "runtime/error.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <netinet/in.h>
#include <set>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace millrace {

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Whether the port can be listened at now.
bool is_free(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool free = bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 && listen(fd, 1) == 0;
  close(fd);
  return free || errno == EACCES; // which the node says better
}

/// The processes of this host, from their start to the end of the last.
class local_nodes {
public:
  explicit local_nodes(const run_arguments& a);
  int run();

private:
  void start(const node_settings& node);
  void say(const std::string& name, std::string_view line) const;
  void ended(const node_processes::ended& e);
  void stays_down(const std::string& name, const std::string& why, int status);
  [[nodiscard]] std::string done_by_nobody() const;
  void end_all();
  void pass_interrupts();
  void restart_due();
  [[nodiscard]] bool restart_is_due() const;

  run_arguments arguments_;
  settings options_;
  std::string directory_;
  std::vector<node_settings> here_;
  std::size_t width_ = 0;
  node_processes processes_;
  struct restart {
    int count = 0;
    double due = 0; ///< 0: none
  };
  std::map<std::string, restart> restarts_;
  std::set<std::string> given_up_; ///< nodes that are not started again
  int passed_ = 0; ///< interrupts passed on
  double ending_since_ = 0;
  bool asked_to_end_ = false;
  int status_ = 0;
};

local_nodes::local_nodes(const run_arguments& a)
  : arguments_(a), options_(a.load()),
    processes_([this](const std::string& name, std::string_view line) { say(name, line); }) {
  if (options_.cluster.nodes.empty())
    throw user_error(a.file() + ": cluster.nodes: is missing; `millrace run` trains in one process "
                                "without it");
  for (const auto& n : options_.cluster.nodes)
    if (is_this_host(n.host)) {
      here_.push_back(n);
      width_ = std::max(width_, n.name.size());
    }
  if (here_.empty())
    throw user_error(a.file() + ": cluster.nodes: none has this host's name or address");
  if (const auto* head = options_.cluster.head(); is_this_host(head->host) && !is_free(head->port))
    throw user_error("cluster.nodes: port " + std::to_string(head->port) + " of node " + head->name
                     + " is taken, perhaps by this cluster, already up (`millrace status`); set "
                       "another, or stop what holds it");
  directory_ = a.run_directory(options_);
}

/// Node names in front, lined up, so that what each says stays readable.
void local_nodes::say(const std::string& name, std::string_view line) const {
  std::printf("%-*s | %.*s\n", static_cast<int>(width_), name.c_str(), static_cast<int>(line.size()),
              line.data());
  std::fflush(stdout);
}

void local_nodes::start(const node_settings& node) {
  std::vector<std::string> command{std::filesystem::read_symlink("/proc/self/exe").string(), "node",
                                   arguments_.file(), "--name", node.name};
  for (const auto& s : arguments_.changes()) {
    command.push_back("--set");
    command.push_back(s);
  }
  if (node.actors.trainer > 0) {
    command.push_back("--run-dir");
    command.push_back(directory_);
    if (arguments_.resume)
      command.push_back("--resume");
  }
  processes_.start(node.name, command);
}

void local_nodes::ended(const node_processes::ended& e) {
  const auto* node = options_.cluster.find(e.name);
  const auto is_head = node->actors.trainer > 0;
  auto how = e.signal > 0       ? "was ended by signal " + std::to_string(e.signal)
             : e.status == 0    ? std::string("ended")
             : e.status == 130  ? std::string("ended, interrupted")
                                : "ended with status " + std::to_string(e.status);
  if (e.status != 0 || is_head)
    say(e.name, "-- " + how);
  if (is_head) {
    if (status_ == 0)
      status_ = e.status;
    if (e.status != 0 && e.status != 130 && e.status != 2)
      say(e.name, "-- the run can go on with: millrace up --run-dir " + directory_ + " --resume");
    ending_since_ = now();
    return;
  }
  if (ending_since_ > 0 || e.status == 0)
    return;
  if (e.status == 2)
    return stays_down(e.name, "a start more can't mend that", 2);
  auto& r = restarts_[e.name];
  if (r.count >= options_.supervisor.max_restarts)
    return stays_down(e.name, "supervisor.max_restarts is reached", 1);
  auto pause = std::min(10.0, 0.5 * static_cast<double>(1U << std::min(r.count, 8)));
  ++r.count;
  r.due = now() + pause;
  say(e.name, "-- starts again (" + std::to_string(r.count) + " of "
                + std::to_string(options_.supervisor.max_restarts) + ")");
}

/// The others go on where they can: where nobody is left to do what this node did, the run would
/// only wait.
void local_nodes::stays_down(const std::string& name, const std::string& why, int status) {
  given_up_.insert(name);
  say(name, "-- it stays down: " + why);
  const auto work = done_by_nobody();
  if (processes_.running(options_.cluster.head()->name) && !work.empty()) {
    say(name, "-- so the cluster ends: no other node has a " + work);
    status_ = status;
    end_all();
  } else if (given_up_.size() == here_.size()) { // and nobody here hears how the run ends
    status_ = status;
  }
}

/// A kind of actor that the stream needs and that only nodes have which are given up; or empty.
std::string local_nodes::done_by_nobody() const {
  const auto all_given_up = [&](std::int32_t node_actors_settings::*count) {
    std::size_t with = 0, lost = 0;
    for (const auto& n : options_.cluster.nodes) {
      with += n.actors.*count > 0 ? 1 : 0;
      lost += n.actors.*count > 0 && given_up_.contains(n.name) ? 1 : 0;
    }
    return lost > 0 && lost == with;
  };
  return all_given_up(&node_actors_settings::generator) ? "generator"
         : all_given_up(&node_actors_settings::reward)  ? "reward actor"
         : all_given_up(&node_actors_settings::replay)  ? "replay buffer"
                                                        : "";
}

void local_nodes::restart_due() {
  for (auto& [name, r] : restarts_)
    if (r.due > 0 && now() >= r.due && ending_since_ == 0) {
      r.due = 0;
      start(*options_.cluster.find(name));
    }
}

bool local_nodes::restart_is_due() const {
  return ending_since_ == 0
         && std::any_of(restarts_.begin(), restarts_.end(),
                        [](const auto& entry) { return entry.second.due > 0; });
}

/// The run ends after its step: the trainer's node lets the others go. Where that one isn't here,
/// this host's nodes leave.
void local_nodes::end_all() {
  const auto& head = options_.cluster.head()->name;
  if (processes_.running(head))
    processes_.signal(head, SIGTERM);
  else
    processes_.signal_all(SIGTERM);
  ending_since_ = now();
}

/// The first interrupt ends the run in order, the second at once.
void local_nodes::pass_interrupts() {
  if (interrupts() == passed_)
    return;
  passed_ = interrupts();
  if (!processes_.running(options_.cluster.head()->name))
    status_ = 130;
  end_all();
}

int local_nodes::run() {
  note_interrupts();
  ignore_broken_pipes();
  std::printf("%zu of %zu nodes on this host; run directory: %s\n", here_.size(),
              options_.cluster.nodes.size(), directory_.c_str());
  std::fflush(stdout);
  for (const auto& n : here_)
    start(n);
  while (processes_.running() > 0 || restart_is_due()) {
    for (const auto& e : processes_.watch(0.2))
      ended(e);
    pass_interrupts();
    restart_due();
    auto head_here = processes_.running(options_.cluster.head()->name);
    auto waited = ending_since_ > 0 && !head_here ? now() - ending_since_ : 0;
    if (waited > 20)
      processes_.signal_all(SIGKILL);
    else if (waited > 5 && !std::exchange(asked_to_end_, true))
      processes_.signal_all(SIGTERM); // once: the second would end them at once
  }
  return status_;
}

} // namespace

void add_up_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("up", "Start this host's nodes of a cluster, and show what they say");
  auto a = std::make_shared<run_arguments>();
  a->declare(*cmd);
  cmd->callback([a, &status] { status = local_nodes(*a).run(); });
}

} // namespace millrace
