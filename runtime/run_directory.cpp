#include "runtime/run_directory.hpp"

#include "runtime/atomic_file.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <utility>

namespace millrace {
namespace fs = std::filesystem;
namespace {

constexpr auto lenient = nlohmann::json::error_handler_t::replace;

[[noreturn]] void fail(const fs::path& path, std::string_view what, const std::string& reason) {
  throw user_error(path.string() + ": " + std::string(what) + ": " + reason);
}

void make_folders(const fs::path& path) {
  std::error_code failed;
  fs::create_directories(path, failed);
  if (failed)
    fail(path, "can't make this folder", failed.message());
}

void open_for_resume(const fs::path& path) {
  if (!fs::exists(path / "config.json"))
    throw user_error(path.string() + ": holds no run to resume (it has no config.json)");
}

void make_fresh(const fs::path& path) {
  std::error_code failed;
  if (fs::exists(path) && !fs::is_directory(path, failed))
    throw user_error(path.string() + ": is a file, expected a folder for the run");
  make_folders(path);
  const bool foreign = !fs::is_empty(path, failed) && !fs::exists(path / ".lock");
  if (failed)
    fail(path, "can't read this folder", failed.message());
  if (foreign)
    throw user_error(path.string() + ": is not empty, and holds no run; choose another folder with "
                                     "--run-dir");
}

void refuse_other_run(const fs::path& path) {
  if (fs::exists(path / "config.json"))
    throw user_error(path.string() + ": holds a run already; go on with it by --resume, or choose "
                                     "another folder with --run-dir");
}

} // namespace

fs::path fresh_run_path(const fs::path& config_file, double wall) {
  const auto seconds = static_cast<std::time_t>(wall);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &parts);
  const auto base = fs::path("runs") / (config_file.stem().string() + "-" + stamp);
  auto path = base;
  for (int n = 2; fs::exists(path); ++n)
    path = base.string() + "-" + std::to_string(n);
  return path;
}

run_directory::descriptor::~descriptor() { reset(); }

void run_directory::descriptor::reset() {
  if (value >= 0)
    ::close(std::exchange(value, -1));
}

run_directory::run_directory(fs::path path, mode how) : path_(std::move(path)) {
  made_ = !fs::exists(path_);
  if (how == mode::resume)
    open_for_resume(path_);
  else
    make_fresh(path_);
  lock();
  if (how == mode::fresh)
    refuse_other_run(path_); // only now: whoever held the lock may have been about to write it
  make_folders(path_ / "checkpoints");
}

run_directory::~run_directory() {
  std::error_code unknown;
  if (made_ && !fs::exists(config_file(), unknown) && !unknown)
    fs::remove_all(path_, unknown);
}

void run_directory::lock() {
  const auto file = path_ / ".lock";
  lock_.value = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_.value < 0)
    fail(file, "can't create it", std::strerror(errno));
  if (::flock(lock_.value, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      throw user_error(path_.string() + ": another process is running in this folder");
    fail(file, "can't lock it", std::strerror(errno));
  }
}

void run_directory::write_config(std::string_view resolved) {
  write_file_atomically(config_file(), resolved);
}

void run_directory::write_summary(const nlohmann::ordered_json& summary) {
  write_file_atomically(summary_file(), summary.dump(2, ' ', false, lenient) + "\n");
}

void run_directory::append_metrics(const nlohmann::ordered_json& line) {
  if (metrics_.value < 0) {
    metrics_.value = ::open(metrics_file().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (metrics_.value < 0)
      fail(metrics_file(), "can't open it", std::strerror(errno));
  }
  const auto text = line.dump(-1, ' ', false, lenient) + "\n";
  std::string_view left = text;
  while (!left.empty()) {
    const auto n = ::write(metrics_.value, left.data(), left.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      fail(metrics_file(), "can't write it", std::strerror(errno));
    left.remove_prefix(static_cast<std::size_t>(n));
  }
}

run_directory::rewound_metrics run_directory::rewind_metrics(std::int64_t step) {
  metrics_.reset();
  rewound_metrics out;
  if (!fs::exists(metrics_file()))
    return out;
  std::string kept;
  for (auto& line : read_metrics(metrics_file())) {
    const auto at = line.find("step");
    const auto counted = line.value("kind", "") != "warmup"; // that has steps of its own
    if (counted && at != line.end() && at->is_number() && at->get<double>() > double(step)) {
      out.dropped.push_back(std::move(line));
      continue;
    }
    kept += line.dump(-1, ' ', false, lenient) + "\n";
    out.kept.push_back(std::move(line));
  }
  write_file_atomically(metrics_file(), kept);
  return out;
}

std::vector<nlohmann::json> read_metrics(const fs::path& file) {
  const auto text = read_file(file);
  std::vector<nlohmann::json> out;
  std::size_t number = 1, first_damaged = 0, damaged = 0;
  for (std::size_t from = 0; from < text.size(); ++number) {
    const auto end = text.find('\n', from);
    if (end == std::string::npos)
      break; // torn: the process died while it was written
    auto line = nlohmann::json::parse(text.begin() + std::ptrdiff_t(from),
                                      text.begin() + std::ptrdiff_t(end), nullptr, false);
    if (line.is_object())
      out.push_back(std::move(line));
    else if (++damaged == 1)
      first_damaged = number;
    from = end + 1;
  }
  if (damaged > 0)
    log::warning("metrics", file.string() + ":" + std::to_string(first_damaged)
                              + ": is no JSON object (was its writing cut off?); it is left out, of "
                              "all sums too"
                              + (damaged == 1 ? "" : ", the first of " + std::to_string(damaged)
                                                       + " such lines"));
  return out;
}

} // namespace millrace
