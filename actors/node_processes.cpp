#include "actors/node_processes.hpp"

#include "runtime/error.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace millrace {

namespace {

/// In the child, between fork and exec: only what is safe there.
[[noreturn]] void become(char** arguments, int output, pid_t parent) {
  setpgid(0, 0); // the terminal's Ctrl-C goes to `millrace up` alone, which passes it on in order
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent)
    _exit(127);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execv(arguments[0], arguments);
  _exit(127);
}

} // namespace

node_processes::~node_processes() {
  signal_all(SIGKILL);
  for (auto& c : children_) {
    waitpid(c.pid, nullptr, 0);
    close(c.output);
  }
}

void node_processes::start(const std::string& name, const std::vector<std::string>& arguments) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw user_error("node " + name + ": " + std::strerror(errno));
  std::vector<char*> argv;
  for (const auto& a : arguments)
    argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const auto parent = getpid();
  const auto pid = fork();
  if (pid == 0)
    become(argv.data(), ends[1], parent);
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    throw user_error("node " + name + " could not be started: " + std::strerror(errno));
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  children_.push_back({name, pid, ends[0], {}});
}

void node_processes::take_lines(child& c, bool all) {
  std::size_t from = 0;
  for (auto end = c.rest.find('\n'); end != std::string::npos; end = c.rest.find('\n', from)) {
    lines_(c.name, std::string_view(c.rest).substr(from, end - from));
    from = end + 1;
  }
  c.rest.erase(0, from);
  if (!c.rest.empty() && (all || c.rest.size() > 65536)) {
    lines_(c.name, c.rest);
    c.rest.clear();
  }
}

void node_processes::read_from(child& c) {
  char buffer[16384];
  for (;;) {
    const auto n = read(c.output, buffer, sizeof buffer);
    if (n <= 0)
      return;
    c.rest.append(buffer, static_cast<std::size_t>(n));
    take_lines(c, false);
  }
}

std::vector<node_processes::ended> node_processes::watch(double seconds) {
  using clock = std::chrono::steady_clock;
  const auto until = clock::now() + std::chrono::duration<double>(seconds);
  std::vector<ended> out;
  do {
    std::vector<pollfd> wanted;
    for (const auto& c : children_)
      wanted.push_back({c.output, POLLIN, 0});
    poll(wanted.data(), wanted.size(), 50);
    for (auto& c : children_)
      read_from(c);
    std::erase_if(children_, [&](child& c) {
      int status = 0;
      if (waitpid(c.pid, &status, WNOHANG) != c.pid)
        return false;
      read_from(c);
      take_lines(c, true);
      close(c.output);
      out.push_back({c.name, WIFEXITED(status) ? WEXITSTATUS(status) : 1,
                     WIFSIGNALED(status) ? WTERMSIG(status) : 0});
      return true;
    });
  } while (out.empty() && clock::now() < until);
  return out;
}

void node_processes::signal(const std::string& name, int number) {
  for (const auto& c : children_)
    if (c.name == name)
      kill(c.pid, number);
}

void node_processes::signal_all(int number) {
  for (const auto& c : children_)
    kill(c.pid, number);
}

bool node_processes::running(const std::string& name) const {
  for (const auto& c : children_)
    if (c.name == name)
      return true;
  return false;
}

} // namespace millrace
