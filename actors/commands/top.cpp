#include "actors/commands.hpp"
#include "actors/http_client.hpp"
#include "actors/number_between.hpp"
#include "actors/top_view.hpp"
#include "runtime/error.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

namespace millrace {

namespace {

struct top_arguments {
  std::string run;
  bool once = false;
  double every_s = 1;
};

volatile std::sig_atomic_t stop_top = 0;

top_frame fetch(const run_address& run) {
  auto answer = http_get(run, "introspect");
  if (answer.status == 401)
    throw user_error(run.url + ": a token is needed; give the run's folder, which holds it");
  if (answer.status != 200)
    throw user_error(run.url + ": answered with status " + std::to_string(answer.status));
  return read_top_frame(nlohmann::json::parse(answer.body, nullptr, false));
}

int terminal_size(int& rows) {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
    rows = 24;
    return 80;
  }
  rows = size.ws_row;
  return size.ws_col;
}

/// The terminal's other screen, keys as they are pressed; what was there comes back at the end.
class full_screen {
public:
  full_screen() {
    keys_ = ::tcgetattr(STDIN_FILENO, &before_) == 0;
    if (keys_) {
      auto raw = before_;
      raw.c_lflag &= static_cast<tcflag_t>(~(ICANON | ECHO));
      ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    std::fputs("\033[?1049h\033[?25l", stdout);
  }
  ~full_screen() {
    std::fputs("\033[?25h\033[?1049l", stdout);
    std::fflush(stdout);
    if (keys_)
      ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }

  void show(const top_frame& frame) const {
    int rows = 0;
    auto width = terminal_size(rows);
    std::string out = "\033[H";
    auto lines = top_screen(frame, {width, true});
    if (static_cast<int>(lines.size()) > rows - 1)
      lines.resize(static_cast<std::size_t>(std::max(1, rows - 1)));
    for (const auto& line : lines)
      out += line + "\033[K\n";
    out += "\033[J\033[2mq ends this view; the run goes on\033[0m";
    std::fputs(out.c_str(), stdout);
    std::fflush(stdout);
  }

  /// Waits; true when the user wants to leave.
  [[nodiscard]] bool wait(double seconds) const {
    pollfd p{keys_ ? STDIN_FILENO : -1, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(seconds * 1000)) > 0) {
      char key = 0;
      if (::read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q')
        return true;
    }
    return stop_top != 0;
  }

private:
  termios before_{};
  bool keys_ = false;
};

int watch(const run_address& run, double every_s) {
  std::string end;
  std::optional<top_frame> last;
  {
    auto first = fetch(run); // an error now is told as one
    full_screen screen;
    last = std::move(first);
    do {
      screen.show(*last);
      if (screen.wait(every_s))
        return 0;
      try {
        last = fetch(run);
      } catch (const user_error& e) {
        end = e.what();
      }
    } while (end.empty());
  }
  std::printf("%s\nthe run has ended, or is out of reach: %s\n", top_line(*last).c_str(), end.c_str());
  return 0;
}

int lines(const run_address& run, double every_s) {
  std::printf("%s\n", top_line(fetch(run)).c_str());
  while (stop_top == 0) {
    std::fflush(stdout);
    ::poll(nullptr, 0, static_cast<int>(every_s * 1000));
    try {
      if (stop_top == 0)
        std::printf("%s\n", top_line(fetch(run)).c_str());
    } catch (const user_error&) {
      return 0; // it has ended
    }
  }
  return 0;
}

int top(const top_arguments& a) {
  auto run = find_run(a.run);
  std::signal(SIGINT, [](int) { stop_top = 1; });
  std::signal(SIGTERM, [](int) { stop_top = 1; });
  std::signal(SIGPIPE, SIG_DFL);
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  if (a.once) {
    int rows = 0;
    for (const auto& line : top_screen(fetch(run), {terminal ? terminal_size(rows) : 80, terminal}))
      std::printf("%s\n", line.c_str());
    return 0;
  }
  return terminal ? watch(run, a.every_s) : lines(run, a.every_s);
}

} // namespace

void add_top_command(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand("top", "Watch a running training: rates, queues, staleness, who "
                                        "waits for whom");
  auto a = std::make_shared<top_arguments>();
  cmd->add_option("run,--run", a->run, "Folder of the run, or http://HOST:PORT (default: the newest run "
                                 "under runs/)");
  cmd->add_flag("--once", a->once, "Print the screen once, and end");
  cmd->add_option("--every", a->every_s, "Seconds between two looks")->check(number_between(0.1, 3600));
  cmd->callback([a, &status] { status = top(*a); });
}

} // namespace millrace
