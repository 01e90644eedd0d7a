// The threads of one device: a fixed team, or the engine's threads, that run one job at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/threads/usable_cpus.h"
#include "moracle/base.h"

namespace moracle {

/// CPUs that this process may use: the affinity mask, limited by its control groups (version 1 or
/// 2); at least 1.
int usable_threads();
/// The same for these CPUs in place of the affinity mask.
int usable_threads(const std::vector<int>& cpus);

/// The largest team of threads: more than any machine has CPUs.
inline constexpr int kMaxThreads = 4096;

/// Runs a function on all its threads at once; the caller is thread 0. Between jobs the other
/// threads spin briefly, because the next layer usually follows at once, and then sleep. On a busy
/// machine a thread may start late. Finished threads then run its share, so no job waits for a late
/// thread.
class ThreadPool {
 public:
  /// `threads` 0 means usable_threads(). With `affinity`, each thread except the caller is pinned
  /// to its CPU, or else bound to the CPUs of the team. The caller's thread does not belong to the
  /// pool. If the system refuses a CPU, the thread is not pinned. If the system starts fewer
  /// threads, the pool has these, and started() reports it. A number outside [0, kMaxThreads]
  /// starts none.
  explicit ThreadPool(int threads = 0, ThreadAffinity affinity = {});
  /// Runs jobs as tasks of an engine and starts no thread. `threads`: the largest number of tasks.
  ThreadPool(int threads, RunTasks run_tasks);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Empty, with one node, if the threads are not pinned.
  const ThreadAffinity& affinity() const { return affinity_; }

  int size() const { return size_; }

  /// Errors: kOutOfMemory if the system started fewer threads than the constructor requested, with
  /// their number and the system's reason; a number outside [0, kMaxThreads].
  const Status& started() const { return started_; }

  struct Range {
    int64_t begin = 0, end = 0;
  };
  /// The share of thread `thread` in [0, count). Shares are as even as possible.
  static Range range_of(int64_t count, int thread, int64_t threads) {
    return {count * thread / threads, count * (thread + 1) / threads};
  }
  Range range_of(int64_t count, int thread) const { return range_of(count, thread, size()); }

  /// Calls work(thread) once for each thread in [0, size()), and returns when all calls are done.
  /// Another thread may make the call of a late thread, so no call may wait for another. Calls of
  /// run() from several threads run one after another; work must not call run(). run() allocates
  /// nothing and does not copy `work`. If `work` throws, as the standard library does when memory
  /// is refused, then the exception is rethrown to the caller, but only after all calls of this
  /// job are done.
  template <class Work>
  void run(const Work& work) {
    run_job(job_of(work, true));
  }

  /// As run(), but each thread makes its own call, however late it is. An engine's threads make
  /// calls as in run().
  template <class Work>
  void run_on_each(const Work& work) {
    run_job(job_of(work, false));
  }

  /// Splits [0, count) into even ranges, one per thread, and calls work(begin, end) for each
  /// non-empty range. Uses fewer threads if a range would be smaller than `least`. With a single
  /// range only the caller works, and no thread is woken.
  template <class Work>
  void split(int64_t count, const Work& work, int64_t least = 1) {
    const int64_t threads = std::min<int64_t>(size(), count / std::max<int64_t>(least, 1));
    if (threads <= 1) {
      if (count > 0) work(int64_t{0}, count);
      return;
    }
    run([&](int thread) {
      if (thread >= threads) return;
      const Range own = range_of(count, thread, threads);
      if (own.begin < own.end) work(own.begin, own.end);
    });
  }

 private:
  struct Job {
    void (*call)(const void* work, int thread) = nullptr;
    const void* work = nullptr;
    bool moves = false;  // another thread may make a late thread's call
  };
  // The number of the last job in which the call of one thread was taken.
  struct alignas(64) Taken {
    std::atomic<uint32_t> job{0};
  };
  template <class Work>
  static Job job_of(const Work& work, bool moves) {
    return {[](const void* w, int thread) { (*static_cast<const Work*>(w))(thread); }, &work,
            moves};
  }
  bool check_size(int& threads);
  int usable() const;
  void bind(int thread) const;
  void run_job(Job job);
  void run_as_tasks(Job job);
  bool take(uint32_t number, int thread);
  void take_late(uint32_t number, int own);
  void call(int thread);
  void serve(int thread);

  ThreadAffinity affinity_;
  RunTasks run_tasks_;  // null: own threads
  int size_ = 1;
  Status started_;
  std::mutex callers_;  // one job at a time
  int spins_ = 0;
  // The wait variables of workers and of the caller are on separate cache lines. A worker that
  // finishes then does not invalidate the line of workers that start.
  alignas(64) std::atomic<uint32_t> job_{0};  // counts jobs; workers wait for it to change
  Job current_;
  alignas(64) std::atomic<int> unfinished_{0};
  std::unique_ptr<Taken[]> taken_;
  std::atomic<bool> stop_{false};
  std::mutex thrown_mutex_;
  std::exception_ptr thrown_;  // from the first thread whose work threw
  std::vector<std::thread> workers_;
};

}  // namespace moracle
