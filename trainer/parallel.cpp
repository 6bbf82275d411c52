#include "trainer/parallel.hpp"

#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/model/tensor_parallel.hpp"
#include "runtime/model/torch_device.hpp"
#include "trainer/collectives.hpp"
#include "trainer/rank_watch.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <thread>

extern char** environ;

namespace millrace::trainer {

// -- processes -----------------------------------------------------------------------------------------

namespace {

int start_process(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (auto& a : arguments)
    argv.push_back(a.data());
  argv.push_back(nullptr);
  pid_t id = 0;
  if (auto error = ::posix_spawn(&id, argv[0], nullptr, nullptr, argv.data(), environ))
    throw user_error("trainer.parallel: cannot start " + arguments[0] + ": "
                     + std::strerror(error));
  return id;
}

std::string how_it_ended(int status) {
  return WIFSIGNALED(status) ? "was killed by signal " + std::to_string(WTERMSIG(status))
                             : "ended with status " + std::to_string(WEXITSTATUS(status));
}

} // namespace

rank_processes::rank_processes(const std::vector<std::string>& command, int count,
                               const std::string& endpoint, double timeout_s) {
  for (int k = 1; k <= count; ++k) {
    auto arguments = command;
    for (const auto& a : {std::string("--rank"), std::to_string(k), std::string("--store"), endpoint,
                          std::string("--timeout"), std::to_string(timeout_s),
                          std::string("--parent"), std::to_string(::getpid())})
      arguments.push_back(a);
    ids_.push_back(start_process(std::move(arguments)));
    log::info("trainer", "rank " + std::to_string(k) + " is process " + std::to_string(ids_.back()));
  }
}

std::string rank_processes::ended() {
  const std::lock_guard lock(guard_);
  for (std::size_t k = 0; k < ids_.size(); ++k) {
    int status = 0;
    if (ids_[k] > 0 && ::waitpid(ids_[k], &status, WNOHANG) == ids_[k]) {
      ids_[k] = 0;
      if (ended_.empty())
        ended_ = "trainer rank " + std::to_string(k + 1) + " " + how_it_ended(status);
    }
  }
  return ended_;
}

rank_processes::~rank_processes() {
  auto running = [&] {
    static_cast<void>(ended());
    return std::any_of(ids_.begin(), ids_.end(), [](int id) { return id > 0; });
  };
  for (int i = 0; i < 200 && running(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  for (auto id : ids_)
    if (id > 0) {
      ::kill(id, SIGKILL);
      ::waitpid(id, nullptr, 0);
    }
}

// -- mesh ------------------------------------------------------------------------------------------------

rank_mesh::rank_mesh(rank_grid g, int r, std::unique_ptr<rendezvous> meeting,
                     std::unique_ptr<rank_processes> processes, bool on_cuda)
    : grid(g), rank(r), processes_(std::move(processes)), meeting_(std::move(meeting)),
      device_(model::torch_device(on_cuda ? compute_device::cuda : compute_device::cpu, rank,
                                  "trainer.device")) {
  world_ = meeting_->group("world", rank, grid.ranks(), on_cuda);
  data_ = meeting_->group("data" + std::to_string(tensor_index()), data_index(), grid.dp, on_cuda);
  tensor_ = meeting_->group("tensor" + std::to_string(data_index()), tensor_index(), grid.tp,
                            on_cuda);
  if (on_cuda)
    watch_ = meeting_->watch(rank, grid.ranks(), [this] {
      for (auto* group : {world_.get(), data_.get(), tensor_.get()})
        group->abandon();
    });
  // NCCL connects with a group's first operation: now, where it isn't waited for in a step.
  for (auto* group : {world_.get(), data_.get(), tensor_.get()})
    if (on_cuda && group->size() > 1) {
      auto nothing = at::zeros({1}, at::TensorOptions(at::kFloat).device(device_));
      group->all_reduce(nothing);
    }
}

rank_mesh::~rank_mesh() {
  if (rank == 0)
    try {
      post("end", "");
    } catch (const std::exception&) {
      // They have ended before.
    }
  for (auto* group : {world_.get(), data_.get(), tensor_.get()})
    group->abandon(); // nothing is under way, unless ranks are lost
}

void rank_mesh::agree_on_results() {
  if (device_.is_cuda()) {
    model::wait_for(device_);
    for (auto* group : {world_.get(), data_.get(), tensor_.get()})
      group->check();
  }
  world_->barrier();
}

std::shared_ptr<rank_mesh> rank_mesh::lead(rank_grid grid, std::unique_ptr<rendezvous> meeting,
                                           std::unique_ptr<rank_processes> processes,
                                           bool on_cuda) {
  meeting->post(0, std::to_string(grid.dp) + " " + std::to_string(grid.tp) + " "
                     + std::to_string(on_cuda ? 1 : 0));
  return std::shared_ptr<rank_mesh>(
    new rank_mesh(grid, 0, std::move(meeting), std::move(processes), on_cuda));
}

std::shared_ptr<rank_mesh> rank_mesh::join(int rank, std::unique_ptr<rendezvous> meeting) {
  rank_grid grid;
  meeting->arrive();
  auto text = meeting->read(0);
  int on_cuda = 0;
  ensure(std::sscanf(text.c_str(), "%d %d %d", &grid.dp, &grid.tp, &on_cuda) == 3,
         "rank 0 posted no grid: " + text);
  if (rank < 1 || rank >= grid.ranks())
    throw user_error("--rank: found " + std::to_string(rank) + ", but rank 0 has a grid of "
                     + std::to_string(grid.ranks()) + " ranks");
  return std::shared_ptr<rank_mesh>(
    new rank_mesh(grid, rank, std::move(meeting), nullptr, on_cuda != 0));
}

std::shared_ptr<const model::tensor_group> rank_mesh::tensor_group(bool sequence) {
  if (grid.tp == 1)
    return nullptr;
  auto group = std::make_shared<model::tensor_group>();
  group->rank = tensor_index();
  group->size = grid.tp;
  group->sum = [this](at::Tensor& t) { tensor().all_reduce(t); };
  group->largest = [this](at::Tensor& t) { tensor().all_reduce(t, reduction::largest); };
  group->sequence = sequence;
  group->gather = [this](const at::Tensor& part, at::Tensor& whole) {
    tensor().all_gather(part, whole);
  };
  group->scatter_sum = [this](const at::Tensor& whole, at::Tensor& part) {
    tensor().reduce_scatter(whole, part);
  };
  return group;
}

double rank_mesh::waited_s() const {
  return world_->waited_s() + data_->waited_s() + tensor_->waited_s();
}

void rank_mesh::post(const std::string& what, const std::string& content) {
  if (processes_)
    if (auto end = processes_->ended(); !end.empty())
      throw rank_lost(end);
  meeting_->post(++posted_, what + "\n" + content);
  read_by_all(what);
}

/// After "end" any rank may break off its communicators: nothing of its own may be under way by then.
void rank_mesh::read_by_all(const std::string& what) {
  if (what == "end")
    model::wait_for(device_);
  world_->barrier();
}

rank_mesh::order rank_mesh::next() {
  auto message = meeting_->read(++posted_);
  auto line = message.find('\n');
  ensure(line != std::string::npos, "rank 0 posted an order without a name");
  order next{message.substr(0, line), message.substr(line + 1)};
  read_by_all(next.what);
  return next;
}

// -- starting --------------------------------------------------------------------------------------------

std::vector<std::string> default_rank_command() {
  return {std::filesystem::read_symlink("/proc/self/exe").string(), "trainer-rank"};
}

namespace {

/// Until all processes are there: one that ends before, whatever of, is told at once, where Gloo would
/// wait for it until the time-out.
void await_arrivals(rendezvous& meeting, rank_processes& processes, int count,
                    std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (meeting.arrived() < count && std::chrono::steady_clock::now() < end) {
    if (auto how = processes.ended(); !how.empty())
      throw rank_lost(how + " before training began");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

/// Whether each rank is to have a CUDA device. \throws user_error when there are not enough of them
bool on_cuda_devices(const settings& s, const rank_grid& grid) {
  if (s.trainer.device != compute_device::cuda)
    return false;
  static_cast<void>(model::torch_device(s.trainer.device, 0, "trainer.device"));
  const auto devices = model::cuda_devices("trainer.device");
  if (s.trainer.parallel.spawn && grid.ranks() > devices)
    throw user_error("trainer.parallel: found dp × tp = " + std::to_string(grid.ranks())
                     + " with trainer.device \"cuda\", but this process sees "
                     + std::to_string(devices) + " CUDA device" + (devices == 1 ? "" : "s")
                     + "; expected at most one rank for each");
  return true;
}

} // namespace

std::shared_ptr<rank_mesh> start_ranks(const settings& s, const std::vector<std::string>& command) {
  const auto& p = s.trainer.parallel;
  rank_grid grid{p.dp, p.tp};
  if (grid.ranks() == 1)
    return nullptr;
  const auto on_cuda = on_cuda_devices(s, grid);
  auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(p.timeout_s * 1000));
  auto meeting = rendezvous::host(static_cast<std::uint16_t>(p.port), timeout, p.spawn);
  std::unique_ptr<rank_processes> processes;
  if (p.spawn) {
    processes = std::make_unique<rank_processes>(
      command, grid.ranks() - 1, "127.0.0.1:" + std::to_string(meeting->port()), p.timeout_s);
    await_arrivals(*meeting, *processes, grid.ranks() - 1, timeout);
  }
  return rank_mesh::lead(grid, std::move(meeting), std::move(processes), on_cuda);
}

} // namespace millrace::trainer
