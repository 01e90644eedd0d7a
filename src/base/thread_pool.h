// The threads of one CPU device: a fixed team that works on one thing at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/usable_cpus.h"
#include "moracle/base.h"

namespace moracle {

/// CPUs that this process may use: its affinity mask, cut to what its control groups grant (of
/// either version); at least 1.
int usable_threads();

/// Runs a function on all its threads at once, the caller being thread 0. Between jobs the others
/// spin for a moment, since the next layer usually comes at once, and then sleep.
class ThreadPool {
 public:
  /// `threads` < 1: usable_threads(). With `places` each thread but the caller, who belongs to
  /// somebody else, stays on its CPU; a CPU that the system refuses is let go. Where the system
  /// starts fewer threads, the pool has those; started() says so.
  explicit ThreadPool(int threads = 0, ThreadPlaces places = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Empty, and one node, of threads that are not pinned.
  const ThreadPlaces& places() const { return places_; }

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Errors: kOutOfMemory where the system started fewer threads than the constructor was given,
  /// with their number and the system's reason.
  const Status& started() const { return started_; }

  struct Piece {
    int64_t begin = 0, end = 0;
  };
  /// Thread `thread`'s part of [0, count), cut as evenly as whole numbers allow.
  static Piece piece(int64_t count, int thread, int64_t threads) {
    return {count * thread / threads, count * (thread + 1) / threads};
  }
  Piece piece(int64_t count, int thread) const { return piece(count, thread, size()); }

  /// Calls work(thread) once on each thread, thread in [0, size()), and returns when all are done.
  /// Callers on several threads take turns; calling from inside work is not allowed. Allocates
  /// nothing: the work is called in place, never copied. What work throws (the standard library
  /// does where memory is refused) is thrown to the caller when all threads are done.
  template <class Work>
  void run(const Work& work) {
    run_job({[](const void* w, int thread) { (*static_cast<const Work*>(w))(thread); }, &work});
  }

  /// Splits [0, count) into even pieces, one per thread: work(begin, end), empty pieces left out.
  /// Fewer threads get one where it would be smaller than `least`; where that leaves one, it is the
  /// caller and nobody is woken.
  template <class Work>
  void split(int64_t count, const Work& work, int64_t least = 1) {
    const int64_t threads = std::min<int64_t>(size(), count / std::max<int64_t>(least, 1));
    if (threads <= 1) {
      if (count > 0) work(int64_t{0}, count);
      return;
    }
    run([&](int thread) {
      if (thread >= threads) return;
      const Piece own = piece(count, thread, threads);
      if (own.begin < own.end) work(own.begin, own.end);
    });
  }

 private:
  struct Job {
    void (*call)(const void* work, int thread) = nullptr;
    const void* work = nullptr;
  };
  void run_job(Job job);
  void call(const Job& job, int thread);
  void serve(int thread);

  ThreadPlaces places_;
  Status started_;
  std::mutex callers_;  // one job at a time
  int spins_ = 0;
  // What workers wait for and what the caller waits for: on cache lines of their own, so that a
  // worker that ends does not take the line from under those that begin.
  alignas(64) std::atomic<uint32_t> job_{0};  // counts jobs; workers wait for it to change
  Job current_;
  alignas(64) std::atomic<int> unfinished_{0};
  std::atomic<bool> stop_{false};
  std::mutex thrown_mutex_;
  std::exception_ptr thrown_;  // by the first thread whose work threw
  std::vector<std::thread> workers_;
};

}  // namespace moracle
