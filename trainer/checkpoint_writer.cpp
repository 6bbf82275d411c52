#include "trainer/checkpoint_writer.hpp"

#include <chrono>
#include <utility>

namespace millrace::trainer {

checkpoint_writer::checkpoint_writer(checkpoint_store& store)
    : store_(store), thread_([this] { work(); }) {}

checkpoint_writer::~checkpoint_writer() {
  {
    const std::lock_guard lock(guard_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void checkpoint_writer::rethrow(std::unique_lock<std::mutex>&) {
  if (failed_)
    std::rethrow_exception(std::exchange(failed_, nullptr));
}

void checkpoint_writer::submit(job what) {
  std::unique_lock lock(guard_);
  changed_.wait(lock, [&] { return !job_; });
  rethrow(lock);
  job_ = std::move(what);
  changed_.notify_all();
}

void checkpoint_writer::wait() {
  std::unique_lock lock(guard_);
  changed_.wait(lock, [&] { return !job_; });
  rethrow(lock);
}

double checkpoint_writer::last_write_s() const {
  const std::lock_guard lock(guard_);
  return last_write_s_;
}

void checkpoint_writer::work() {
  std::unique_lock lock(guard_);
  for (;;) {
    changed_.wait(lock, [&] { return job_ || ending_; });
    if (!job_)
      return;
    lock.unlock();
    auto began = std::chrono::steady_clock::now();
    std::exception_ptr error;
    try {
      store_.save(job_->at, job_->write, job_->state, job_->score);
    } catch (...) {
      error = std::current_exception();
    }
    std::optional<job> done;
    lock.lock();
    std::swap(done, job_); // its copy of the weights goes when the lock is free again
    last_write_s_
      = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    if (error)
      failed_ = error;
    lock.unlock();
    done.reset();
    changed_.notify_all();
    lock.lock();
  }
}

} // namespace millrace::trainer
