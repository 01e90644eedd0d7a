#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "base/text.h"

namespace moracle {

int usable_threads() {
  int threads = static_cast<int>(affinity_cpus().size());
  if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  if (const double granted = cgroup_cpus(); granted > 0)
    threads = std::min(threads, static_cast<int>(granted + 0.5));
  return std::max(threads, 1);
}

namespace {

// About a millisecond where a pause takes 140 cycles, as on Intel's servers, and less elsewhere:
// who has finished waits for who has not, and to be woken often takes longer than that wait.
constexpr int kSpins = 20000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads, ThreadPlaces places) : places_(std::move(places)) {
  if (threads < 1) threads = usable_threads();
  if (threads == 1) return;  // nobody to wait for
  // Who spins while the thread that it waits for has no CPU only keeps it waiting.
  spins_ = threads <= usable_threads() ? kSpins : 0;
  const auto fewer = [&](const std::string& reason) {
    return Error{ErrorKind::kOutOfMemory, "", "--threads",
                 str("at most ", size(), ", as the system starts no more"),
                 str("it is ", threads, ", and the system said: ", reason)};
  };
  try {
    workers_.reserve(static_cast<size_t>(threads) - 1);
    for (int thread = 1; thread < threads; ++thread)
      workers_.emplace_back([this, thread] { serve(thread); });
  } catch (const std::system_error& error) {
    started_ = fewer(error.code().message());
  } catch (const std::bad_alloc&) {
    started_ = fewer("there is no memory");
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_job(Job job) {
  if (workers_.empty()) return job.call(job.work, 0);
  const std::lock_guard lock(callers_);
  current_ = job;
  unfinished_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  call(job, 0);
  for (int spin = 0; spin < spins_ && unfinished_.load(std::memory_order_acquire) > 0; ++spin) {
    pause_briefly();
  }
  for (int left = unfinished_.load(std::memory_order_acquire); left > 0;
       left = unfinished_.load(std::memory_order_acquire)) {
    unfinished_.wait(left, std::memory_order_acquire);
  }
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

// The caller's own part, too: the work must not go while other threads still read it.
void ThreadPool::call(const Job& job, int thread) {
  try {
    job.call(job.work, thread);
  } catch (...) {
    const std::lock_guard lock(thrown_mutex_);
    if (!thrown_) thrown_ = std::current_exception();
  }
}

void ThreadPool::serve(int thread) {
  if (thread < static_cast<int>(places_.cpus.size())) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(places_.cpus[thread], &set);
    ::sched_setaffinity(0, sizeof set, &set);
  }
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < spins_ && job_.load(std::memory_order_acquire) == seen; ++spin) {
      pause_briefly();
    }
    job_.wait(seen, std::memory_order_acquire);
    // Jobs cannot be missed: the next one starts only when every worker has finished this one.
    seen = job_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    call(current_, thread);
    if (unfinished_.fetch_sub(1, std::memory_order_release) == 1) unfinished_.notify_all();
  }
}

}  // namespace moracle
