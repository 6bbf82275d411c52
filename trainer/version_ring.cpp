#include "trainer/version_ring.hpp"

#include "runtime/error.hpp"
#include "runtime/scratch_folder.hpp"
#include "trainer/stopwatch.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace fs = std::filesystem;

namespace millrace::trainer {

namespace {

/// A file descriptor that closes itself.
struct open_file {
  int fd = -1;
  ~open_file() {
    if (fd >= 0)
      ::close(fd);
  }
};

[[noreturn]] void refuse(const fs::path& path, const char* what) {
  throw user_error("algorithm.snapshot.folder: can't " + std::string(what) + " " + path.string()
                   + ": " + std::strerror(errno));
}

constexpr auto own_name = "versions";

/// Rings are all that uses the folder: it is there for one that is alive, or was killed.
bool only_of_rings(const fs::path& folder) {
  std::error_code failed;
  const fs::directory_iterator all(folder, failed);
  return !failed && all != fs::directory_iterator()
         && std::all_of(begin(all), end(all), [](const fs::directory_entry& e) {
              return e.path().filename().string().starts_with(std::string(own_name) + "-");
            });
}

[[noreturn]] void refuse_folder(const std::string& why) {
  throw user_error("algorithm.snapshot.folder: " + why + "; set it to a folder that can be "
                   "written, or algorithm.snapshot.disk_bytes to 0");
}

void write_all(const fs::path& path, const std::byte* data, std::int64_t bytes) {
  open_file file{::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
  if (file.fd < 0)
    refuse(path, "write");
  while (bytes > 0) {
    auto n = ::write(file.fd, data, static_cast<std::size_t>(bytes));
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      refuse(path, "write");
    data += n;
    bytes -= n;
  }
}

void read_all(int fd, const fs::path& path, std::byte* data, std::int64_t bytes) {
  while (bytes > 0) {
    auto n = ::read(fd, data, static_cast<std::size_t>(bytes));
    if (n < 0 && errno == EINTR)
      continue;
    if (n == 0)
      errno = ENODATA;
    if (n <= 0)
      refuse(path, "read");
    data += n;
    bytes -= n;
  }
}

std::byte* bytes_of(at::Tensor& t) { return reinterpret_cast<std::byte*>(t.data_ptr<float>()); }

} // namespace

class version_ring::disk_folder : public scratch_folder {
public:
  using scratch_folder::scratch_folder;

  /// One of this process in `folder`, after what dead ones have left there is gone.
  static std::unique_ptr<disk_folder> make(const fs::path& folder) {
    for (int tries = 1;; ++tries) {
      std::error_code failed;
      fs::create_directories(folder, failed);
      if (failed)
        refuse_folder("can't make " + folder.string() + ": " + failed.message());
      try {
        return std::make_unique<disk_folder>(own_name, folder);
      } catch (const user_error& e) {
        // Another process may just have removed the folder as the last that was in it.
        if (tries == 3 || fs::exists(folder, failed))
          refuse_folder(e.what());
      }
    }
  }
};

version_ring::version_ring(ring_limits limits) : limits_(std::move(limits)) {
  ensure(limits_.versions > 0, "version_ring: room for no version");
  if (limits_.disk_bytes == 0)
    return;
  std::error_code failed;
  tidy_ = !fs::exists(limits_.folder, failed) || only_of_rings(limits_.folder);
  disk_ = disk_folder::make(limits_.folder);
}

version_ring::~version_ring() {
  disk_.reset();
  std::error_code ignored;
  if (tidy_)
    fs::remove(limits_.folder, ignored); // only when it is empty
}

fs::path version_ring::file_of(version v) const {
  return disk_->path() / ("v" + std::to_string(v.value) + ".f32");
}

std::int64_t version_ring::budget(place p) const {
  return p == place::device ? limits_.device_bytes
                            : p == place::memory ? limits_.memory_bytes : limits_.disk_bytes;
}

std::int64_t& version_ring::used(place p) {
  return p == place::device ? usage_.device_bytes
                            : p == place::memory ? usage_.memory_bytes : usage_.disk_bytes;
}

/// Room for `bytes` in `p`, by moving its oldest on. False when it can't be.
bool version_ring::make_room(place p, std::int64_t bytes) {
  if (bytes > budget(p))
    return false;
  while (used(p) + bytes > budget(p)) {
    auto oldest = std::find_if(slots_.begin(), slots_.end(),
                               [&](const slot& s) { return s.where == p; });
    ensure(oldest != slots_.end(), "version_ring: bytes are used by no version");
    if (move_down(*oldest)) {
      ++usage_.moved_down;
      continue;
    }
    // All older ones lie in slower places, which are full of younger ones than the oldest of all.
    ++usage_.refused;
    drop(oldest);
  }
  return true;
}

bool version_ring::move_down(slot& s) {
  if (s.where == place::device && make_room(place::memory, s.bytes)) {
    auto host = at::empty(s.weights.sizes(), s.weights.options().device(at::kCPU));
    host.copy_(s.weights);
    s.weights = host;
    used(place::device) -= s.bytes;
    s.where = place::memory;
    used(place::memory) += s.bytes;
    usage_.peak_memory_bytes = std::max(usage_.peak_memory_bytes, usage_.memory_bytes);
    return true;
  }
  if (s.where == place::disk) // there is no slower place
    return false;
  if (!usage_.disk_problem.empty() || !make_room(place::disk, s.bytes))
    return false;
  try {
    auto host = s.weights.to(at::kCPU).contiguous();
    write_all(file_of(s.v), bytes_of(host), s.bytes);
  } catch (const std::exception& e) {
    usage_.disk_problem = e.what();
    std::error_code ignored;
    fs::remove(file_of(s.v), ignored);
    return false;
  }
  used(s.where) -= s.bytes;
  if (s.where == place::memory)
    spare_.push_back(std::exchange(s.weights, at::Tensor()));
  s.weights = at::Tensor();
  s.where = place::disk;
  used(place::disk) += s.bytes;
  usage_.peak_disk_bytes = std::max(usage_.peak_disk_bytes, usage_.disk_bytes);
  return true;
}

void version_ring::drop(std::list<slot>::iterator s) {
  used(s->where) -= s->bytes;
  std::error_code ignored;
  if (s->where == place::disk)
    fs::remove(file_of(s->v), ignored);
  if (s->where == place::memory)
    spare_.push_back(std::move(s->weights));
  slots_.erase(s);
}

bool version_ring::put(version v, const at::Tensor& flat) {
  at::NoGradGuard no_grad;
  std::lock_guard lock(guard_);
  stopwatch timer(usage_.seconds);
  ensure(slots_.empty() || slots_.back().v < v,
         [&] { return "version_ring: " + to_string(v) + " comes after a younger one"; });
  ensure(flat.scalar_type() == at::kFloat && flat.dim() == 1, "version_ring: weights not flat fp32");
  newest_ = v;
  while (static_cast<std::int32_t>(slots_.size()) >= limits_.versions)
    drop(slots_.begin());
  slot s{v, place::memory, static_cast<std::int64_t>(flat.nbytes()), {}};
  auto on_device = !flat.is_cpu() && make_room(place::device, s.bytes);
  if (on_device) {
    s.where = place::device;
    s.weights = flat.detach().clone();
  } else if (make_room(place::memory, s.bytes)) {
    // What was just dropped is as large: its memory is used again. Spare memory is no budget's.
    // Not while a reader still copies out of it.
    if (!spare_.empty() && spare_.back().sizes() == flat.sizes() && spare_.back().use_count() == 1)
      s.weights = std::move(spare_.back());
    else
      s.weights = at::empty(flat.sizes(), flat.options().device(at::kCPU));
    s.weights.copy_(flat.detach());
  } else {
    s.weights = flat.detach(); // straight to disk: counted nowhere until it is there
    s.where = place::device;
    used(s.where) += s.bytes;
    if (!move_down(s)) {
      used(s.where) -= s.bytes;
      ++usage_.refused;
      spare_.clear();
      return false;
    }
  }
  spare_.clear();
  if (s.where != place::disk)
    used(s.where) += s.bytes;
  usage_.peak_memory_bytes = std::max(usage_.peak_memory_bytes, usage_.memory_bytes);
  slots_.push_back(std::move(s));
  return true;
}

bool version_ring::holds(version v) const {
  std::lock_guard lock(guard_);
  return std::any_of(slots_.begin(), slots_.end(), [&](const slot& s) { return s.v == v; });
}

bool version_ring::load(version v, at::Tensor into) {
  try {
    return copy(v, std::move(into));
  } catch (const user_error& e) { // what lay on disk is gone: the version is as good as dropped
    std::lock_guard lock(guard_);
    usage_.disk_problem = e.what();
    auto s = std::find_if(slots_.begin(), slots_.end(), [&](const slot& x) { return x.v == v; });
    if (s != slots_.end())
      drop(s);
    return false;
  }
}

bool version_ring::copy(version v, at::Tensor into) {
  at::NoGradGuard no_grad;
  // What is found is kept alive by a handle, so that the copy itself holds up no one.
  at::Tensor weights;
  open_file file;
  fs::path path;
  std::int64_t bytes = 0;
  double took = 0;
  {
    std::lock_guard lock(guard_);
    auto s = std::find_if(slots_.begin(), slots_.end(), [&](const slot& x) { return x.v == v; });
    if (s == slots_.end())
      return false;
    bytes = s->bytes;
    weights = s->weights;
    if (s->where == place::disk) {
      path = file_of(v);
      if ((file.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC)) < 0)
        refuse(path, "read");
    }
  }
  {
    stopwatch timer(took);
    into = into.detach();
    ensure(static_cast<std::int64_t>(into.nbytes()) == bytes, "version_ring: sizes differ");
    if (weights.defined()) {
      into.copy_(weights);
    } else if (into.is_cpu()) {
      read_all(file.fd, path, bytes_of(into), bytes);
    } else {
      auto host = at::empty(into.sizes(), into.options().device(at::kCPU));
      read_all(file.fd, path, bytes_of(host), bytes);
      into.copy_(host);
    }
  }
  std::lock_guard lock(guard_);
  usage_.seconds += took;
  return true;
}

void version_ring::forget_below(version v) {
  std::lock_guard lock(guard_);
  while (!slots_.empty() && slots_.front().v < v)
    drop(slots_.begin());
  spare_.clear();
}

std::vector<version> version_ring::versions() const {
  std::lock_guard lock(guard_);
  std::vector<version> out;
  for (const auto& s : slots_)
    out.push_back(s.v);
  return out;
}

version version_ring::newest() const {
  std::lock_guard lock(guard_);
  return newest_;
}

ring_usage version_ring::usage() const {
  std::lock_guard lock(guard_);
  return usage_;
}

std::string version_ring::given_up() const {
  std::lock_guard lock(guard_);
  if (!usage_.disk_problem.empty())
    return usage_.disk_problem + "; no version goes to disk any more, and the fallback serves "
                                 "tokens of those that there is no other room for";
  return usage_.refused == 0 ? ""
                             : "algorithm.snapshot: the budgets have no room for all "
                                 + std::to_string(limits_.versions)
                                 + " versions; tokens of those given up are served by the fallback";
}

} // namespace millrace::trainer
