#include "runtime/plugins/child_pool.hpp"

#include "runtime/short_forms.hpp"
#include "runtime/without_sigpipe.hpp"

#include <algorithm>
#include <utility>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

extern char** environ;

namespace millrace::plugins {

using clock = std::chrono::steady_clock;

namespace {

std::chrono::nanoseconds seconds(double s) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(s * 1e9));
}

int milliseconds_until(clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

/// What became of a process, after "it".
std::string ending(int status) {
  if (WIFSIGNALED(status)) {
    const auto signal = WTERMSIG(status);
    return "was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
  }
  return "exited with status " + std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

} // namespace

struct child_pool::child {
  pid_t pid = -1;
  int in = -1, out = -1; ///< its standard input and output
  std::string unread;
  int failures = 0; ///< in a row
  time not_before{};

  void close_pipes() {
    for (auto* fd : {&in, &out})
      if (*fd >= 0)
        ::close(std::exchange(*fd, -1));
    unread.clear();
  }
  /// Ends it, if it hasn't by itself within `patience`; its wait status.
  int reap(std::chrono::milliseconds patience) {
    close_pipes();
    int status = 0;
    const auto until = clock::now() + patience;
    while (waitpid(pid, &status, WNOHANG) == 0) {
      if (clock::now() >= until) {
        kill(-pid, SIGKILL);
        waitpid(pid, &status, 0);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(-std::exchange(pid, -1), SIGKILL); // what it started
    return status;
  }
};

/// Holds a child for one question, and gives it back.
class child_pool::lease {
public:
  lease(child_pool& pool, time deadline) : pool_(pool) {
    std::unique_lock lock(pool.mutex_);
    if (!pool.returned_.wait_until(lock, deadline, [&] { return !pool.idle_.empty(); }))
      throw child_failure("all " + std::to_string(pool.options_.size)
                          + " processes were busy for too long");
    // The one that has run, before one that must be started.
    auto best = std::max_element(pool.idle_.begin(), pool.idle_.end(), [](child* a, child* b) {
      return std::pair(a->pid > 0, -a->failures) < std::pair(b->pid > 0, -b->failures);
    });
    held_ = *best;
    pool.idle_.erase(best);
  }
  ~lease() {
    {
      std::lock_guard lock(pool_.mutex_);
      pool_.idle_.push_back(held_);
    }
    pool_.returned_.notify_one();
  }
  child& operator*() { return *held_; }

private:
  child_pool& pool_;
  child* held_ = nullptr;
};

child_pool::child_pool(child_pool_options options) : options_(std::move(options)) {
  options_.size = std::max(options_.size, 1);
  for (std::int32_t i = 0; i < options_.size; ++i) {
    children_.push_back(std::make_unique<child>());
    idle_.push_back(children_.back().get());
  }
}

child_pool::~child_pool() {
  for (auto& c : children_)
    c->close_pipes(); // all at once, so that they end side by side
  for (auto& c : children_)
    if (c->pid > 0)
      c->reap(std::chrono::milliseconds(300));
}

std::string child_pool::ask(const std::string& line) {
  const auto deadline = clock::now() + seconds(options_.timeout_s);
  lease l(*this, deadline);
  child& c = *l;
  if (c.pid <= 0)
    start(c, deadline);
  std::string answer;
  converse(c, line + "\n", deadline, answer);
  c.failures = 0;
  return answer;
}

std::int64_t child_pool::started() const {
  std::lock_guard lock(mutex_);
  return started_;
}

void child_pool::start(child& c, time deadline) {
  if (c.not_before > clock::now()) {
    std::this_thread::sleep_until(std::min(c.not_before, deadline));
    if (clock::now() >= deadline)
      throw child_failure("failed " + std::to_string(c.failures)
                          + " times in a row; it is started again after a while");
  }
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0)
    throw child_failure(std::string("no pipe: ") + std::strerror(errno));
  if (pipe2(out, O_CLOEXEC) != 0) {
    ::close(in[0]), ::close(in[1]);
    throw child_failure(std::string("no pipe: ") + std::strerror(errno));
  }
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in[0], 0);
  posix_spawn_file_actions_adddup2(&files, out[1], 1);
  posix_spawnattr_t how;
  posix_spawnattr_init(&how);
  sigset_t none, usual;
  sigemptyset(&none);
  sigfillset(&usual);
  posix_spawnattr_setsigmask(&how, &none);
  posix_spawnattr_setsigdefault(&how, &usual);
  posix_spawnattr_setpgroup(&how, 0); // apart from Ctrl-C, and killed with what it starts
  posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF
                                   | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> arguments;
  for (auto& a : options_.command)
    arguments.push_back(a.data());
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const auto error = posix_spawnp(&pid, arguments[0], &files, &how, arguments.data(), environ);
  posix_spawnattr_destroy(&how);
  posix_spawn_file_actions_destroy(&files);
  ::close(in[0]), ::close(out[1]);
  c.in = in[1], c.out = out[0];
  for (auto fd : {c.in, c.out})
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  if (error != 0) {
    c.close_pipes();
    throw child_failure("can't be started: " + options_.command[0] + ": " + std::strerror(error));
  }
  c.pid = pid;
  std::lock_guard lock(mutex_);
  ++started_;
}

/// Writes and reads side by side: a process may answer before it has read everything.
void child_pool::converse(child& c, const std::string& line, time deadline, std::string& answer) {
  without_sigpipe quiet;
  std::size_t written = 0, searched = 0;
  auto end = std::string::npos;
  for (;;) {
    if (end == std::string::npos) {
      end = c.unread.find('\n', searched);
      searched = c.unread.size();
    }
    if (std::min(end, c.unread.size()) > options_.longest_answer)
      fail(c, mishap::endless);
    if (end != std::string::npos && written == line.size()) {
      answer = c.unread.substr(0, end);
      c.unread.erase(0, end + 1);
      return;
    }
    if (clock::now() >= deadline) // one that writes and writes never lets poll() time out
      fail(c, mishap::late);
    pollfd fds[2] = {{c.out, POLLIN, 0}, {c.in, POLLOUT, 0}};
    const auto ready = poll(fds, written < line.size() ? 2 : 1, milliseconds_until(deadline));
    if (ready < 0 && errno == EINTR)
      continue;
    if (ready <= 0)
      fail(c, mishap::late);
    if (written < line.size() && fds[1].revents != 0) {
      const auto n = ::write(c.in, line.data() + written, line.size() - written);
      if (n < 0 && errno != EAGAIN && errno != EINTR)
        written = line.size(); // it reads no more, but may have answered
      written += n > 0 ? static_cast<std::size_t>(n) : 0;
    }
    if (fds[0].revents != 0) {
      char buffer[65536];
      const auto n = ::read(c.out, buffer, sizeof buffer);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        fail(c, mishap::closed);
      c.unread.append(buffer, n > 0 ? static_cast<std::size_t>(n) : 0);
    }
  }
}

/// Ends the process and throws. Of one that closed its output, how it ended by itself says more.
void child_pool::fail(child& c, mishap it_went) {
  const int status = c.reap(std::chrono::milliseconds(it_went == mishap::closed ? 1000 : 0));
  const bool by_us = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  std::string why;
  switch (it_went) {
    case mishap::late:
      why = printed("gave no answer within %g s and was killed", options_.timeout_s);
      break;
    case mishap::endless:
      why = printed("gave an answer longer than %zu bytes and was killed", options_.longest_answer);
      break;
    case mishap::closed:
      why = by_us ? "closed its standard output" : ending(status);
      break;
  }
  if (++c.failures > 1)
    c.not_before = clock::now()
                   + seconds(std::min(options_.max_backoff_s,
                                      options_.backoff_s * double(1 << std::min(c.failures - 2, 20))));
  throw child_failure("its process " + why);
}

} // namespace millrace::plugins
