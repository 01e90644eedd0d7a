#include "base/threads/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "base/threads/spin.h"

namespace moracle {

int usable_threads() {
  return usable_threads(affinity_cpus());
}

int usable_threads(const std::vector<int>& cpus) {
  int threads = static_cast<int>(cpus.size());
  if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  if (const double granted = cgroup_cpus(); granted > 0)
    threads = std::min(threads, static_cast<int>(granted + 0.5));
  return std::max(threads, 1);
}

namespace {

// About one millisecond if a pause takes 140 cycles, as on Intel servers; less elsewhere. Finished
// threads wait for the others, and waking a thread often takes longer than this wait.
constexpr int kSpins = 20000;

}  // namespace

// Replaces 0 by the default. False: a number that no pool can have.
bool ThreadPool::check_size(int& threads) {
  if (threads < 0 || threads > kMaxThreads) {
    started_ = Error{ErrorKind::kInvalidArgument, "", "threads",
                     str("1 to ", kMaxThreads, ", or 0 for all CPUs that the process may use"),
                     str("it is ", threads)};
    return false;
  }
  if (threads == 0) threads = usable();
  return true;
}

int ThreadPool::usable() const {
  return affinity_.team.empty() ? usable_threads() : usable_threads(affinity_.team);
}

ThreadPool::ThreadPool(int threads, RunTasks run_tasks) : run_tasks_(std::move(run_tasks)) {
  if (check_size(threads)) size_ = threads;
}

ThreadPool::ThreadPool(int threads, ThreadAffinity affinity) : affinity_(std::move(affinity)) {
  if (!check_size(threads) || threads == 1) return;  // there are no other threads to wait for
  // If threads outnumber CPUs, a spinning thread takes CPU time from the thread that it waits for.
  spins_ = threads <= usable() ? kSpins : 0;
  const auto fewer = [&](const std::string& reason) {
    return Error{ErrorKind::kOutOfMemory, "", "threads",
                 str("at most ", workers_.size() + 1, " because the system starts no more"),
                 str("it is ", threads, "; the system says: ", reason)};
  };
  try {
    taken_ = std::make_unique<Taken[]>(static_cast<size_t>(threads));
    workers_.reserve(static_cast<size_t>(threads) - 1);
    for (int thread = 1; thread < threads; ++thread)
      workers_.emplace_back([this, thread] { serve(thread); });
  } catch (const std::system_error& error) {
    started_ = fewer(error.code().message());
  } catch (const std::bad_alloc&) {
    started_ = fewer("out of memory");
  }
  size_ = static_cast<int>(workers_.size()) + 1;
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_job(Job job) {
  if (size_ == 1) return job.call(job.work, 0);
  if (run_tasks_) return run_as_tasks(job);
  const std::lock_guard lock(callers_);
  current_ = job;
  unfinished_.store(size(), std::memory_order_relaxed);
  const uint32_t number = job_.fetch_add(1, std::memory_order_release) + 1;
  job_.notify_all();
  call(0);
  if (job.moves) take_late(number, 0);
  const auto left = [this] { return unfinished_.load(std::memory_order_acquire); };
  const auto all_done = [&] { return left() == 0; };
  spin_then_sleep(spins_, all_done, [&] {
    if (const int now = left(); now > 0) unfinished_.wait(now, std::memory_order_acquire);
  });
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

void ThreadPool::run_as_tasks(Job job) {
  const std::lock_guard lock(callers_);
  current_ = job;
  unfinished_.store(size(), std::memory_order_relaxed);
  run_tasks_(size(), [this](int thread) { call(thread); });
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

// Claims the call of `thread` in job `number`; the thread that gets true must run it. A job ends
// only after all its calls, so `current_` is valid until then. After its end no call is left to
// claim.
bool ThreadPool::take(uint32_t number, int thread) {
  std::atomic<uint32_t>& taken = taken_[thread].job;
  uint32_t before = number - 1;
  return taken.load(std::memory_order_relaxed) == before &&
         taken.compare_exchange_strong(before, number, std::memory_order_acq_rel);
}

// Start at `own` + 1: finished threads then begin with different calls.
void ThreadPool::take_late(uint32_t number, int own) {
  const int threads = size();
  for (int i = 1; i < threads; ++i) {
    const int thread = (own + i) % threads;
    if (thread != 0 && take(number, thread)) call(thread);
  }
}

// `work` must live until all calls are made.
void ThreadPool::call(int thread) {
  try {
    current_.call(current_.work, thread);
  } catch (...) {
    const std::lock_guard lock(thrown_mutex_);
    if (!thrown_) thrown_ = std::current_exception();
  }
  if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_all();
}

void ThreadPool::bind(int thread) const {
  const bool pinned = thread < static_cast<int>(affinity_.cpus.size());
  if (!pinned && affinity_.team.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (pinned) CPU_SET(affinity_.cpus[thread], &set);
  for (size_t i = 0; !pinned && i < affinity_.team.size(); ++i) CPU_SET(affinity_.team[i], &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

void ThreadPool::serve(int thread) {
  bind(thread);
  uint32_t seen = 0;
  for (;;) {
    const auto has_job = [&] { return job_.load(std::memory_order_acquire) != seen; };
    spin_then_sleep(spins_, has_job, [&] { job_.wait(seen, std::memory_order_acquire); });
    seen = job_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (!take(seen, thread)) continue;
    const bool moves = current_.moves;
    call(thread);
    if (moves) take_late(seen, thread);
  }
}

}  // namespace moracle
