// Tests the thread pool: each piece of work runs once, for any caller and any number of calls.
#include "base/threads/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "base/refused_threads.h"

namespace moracle::thread_pool_test {
namespace {

class ThreadPoolOfSize : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolOfSize, RunsWorkOnceForEveryThread) {
  ThreadPool pool(GetParam());
  ASSERT_EQ(pool.size(), GetParam());
  std::vector<int> calls(pool.size());  // each thread has its own: no lock is needed
  for (int job = 1; job <= 200; ++job) {
    if (job % 3 == 0)
      pool.run_on_each([&](int thread) { ++calls[thread]; });
    else
      pool.run([&](int thread) { ++calls[thread]; });
    ASSERT_EQ(calls, std::vector<int>(pool.size(), job));
  }
}

// The engine's threads: here the calling one, which runs the tasks in reverse.
TEST_P(ThreadPoolOfSize, EngineRunsEveryTaskOnce) {
  int jobs = 0;
  ThreadPool pool(GetParam(), [&](int count, const std::function<void(int)>& task) {
    ++jobs;
    for (int i = count - 1; i >= 0; --i) task(i);
  });
  ASSERT_TRUE(pool.started());
  ASSERT_EQ(pool.size(), GetParam());
  std::vector<int> calls(pool.size());
  pool.run([&](int thread) { ++calls[thread]; });
  pool.run_on_each([&](int thread) { ++calls[thread]; });
  EXPECT_EQ(calls, std::vector<int>(pool.size(), 2));
  EXPECT_EQ(jobs, pool.size() > 1 ? 2 : 0) << "one task runs on the calling thread";
  EXPECT_THROW(pool.run([](int) { throw std::bad_alloc(); }), std::bad_alloc);
  pool.run([&](int thread) { ++calls[thread]; });
  EXPECT_EQ(calls, std::vector<int>(pool.size(), 3));
}

TEST_P(ThreadPoolOfSize, RunOnEachMakesOneCallPerThread) {
  ThreadPool pool(GetParam());
  std::vector<std::thread::id> ids(pool.size());
  pool.run_on_each([&](int thread) { ids[thread] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  for (size_t i = 1; i < ids.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(ids[i], ids[j]);
  }
}

// An engine binds its main thread to one CPU: the other threads then take the CPUs of the team.
TEST(ThreadPool, BindsOtherThreadsToCpusOfItsTeam) {
  const std::vector<int> mask = affinity_cpus();
  std::vector<std::vector<int>> masks;
  std::thread bound([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(mask.front(), &one);
    ASSERT_EQ(pthread_setaffinity_np(pthread_self(), sizeof one, &one), 0);
    ThreadAffinity affinity;
    affinity.team = mask;
    ThreadPool pool(0, affinity);
    EXPECT_EQ(pool.size(), usable_threads(mask));
    masks.resize(pool.size());
    pool.run_on_each([&](int thread) { masks[thread] = affinity_cpus(); });
  });
  bound.join();
  ASSERT_FALSE(masks.empty());
  EXPECT_EQ(masks[0], std::vector<int>{mask.front()}) << "the caller's mask stays";
  for (size_t i = 1; i < masks.size(); ++i) EXPECT_EQ(masks[i], mask);
}

TEST_P(ThreadPoolOfSize, SplitCoversEveryIndexOnce) {
  ThreadPool pool(GetParam());
  for (int64_t count : {0, 1, 2, 3, 7, 8, 9, 64, 1000}) {
    std::vector<int> seen(count);
    std::atomic<int> calls{0};
    pool.split(count, [&](int64_t begin, int64_t end) {
      ++calls;
      EXPECT_LT(begin, end) << "empty pieces are left out";
      for (int64_t i = begin; i < end; ++i) ++seen[i];
    });
    EXPECT_EQ(seen, std::vector<int>(count, 1));
    EXPECT_EQ(calls, std::min<int64_t>(count, pool.size()));
  }
}

TEST_P(ThreadPoolOfSize, SplitsSmallWorkOverFewerThreads) {
  ThreadPool pool(GetParam());
  for (int64_t least : {1, 3, 10, 100}) {
    for (int64_t count : {0, 1, 2, 9, 10, 29, 30, 100, 199, 200}) {
      std::vector<int> seen(count);
      std::atomic<int> calls{0};
      pool.split(
          count,
          [&](int64_t begin, int64_t end) {
            ++calls;
            EXPECT_GE(end - begin, std::min(count, least));
            for (int64_t i = begin; i < end; ++i) ++seen[i];
          },
          least);
      EXPECT_EQ(seen, std::vector<int>(count, 1));
      const int64_t most = std::max<int64_t>(1, count / least);
      EXPECT_EQ(calls, count == 0 ? 0 : std::min<int64_t>(most, pool.size()));
    }
  }
}

TEST(ThreadPool, RunsSingleThreadWorkOnCaller) {
  ThreadPool pool(4);
  std::thread::id id;
  pool.split(
      100, [&](int64_t, int64_t) { id = std::this_thread::get_id(); }, 51);
  EXPECT_EQ(id, std::this_thread::get_id());
}

TEST_P(ThreadPoolOfSize, SplitsEvenly) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> sizes(1000);
  pool.split(1000, [&](int64_t begin, int64_t end) { sizes[begin] = end - begin; });
  for (int64_t size : sizes) {
    if (size == 0) continue;
    EXPECT_NEAR(static_cast<double>(size), 1000.0 / pool.size(), 1);
  }
}

// A piece of work may start a split of zero or one items. The same thread runs it at once.
TEST_P(ThreadPoolOfSize, SmallSplitsMayBeNested) {
  ThreadPool pool(GetParam());
  std::atomic<int> inner{0};
  pool.split(100, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      pool.split(i % 2,
                 [&](int64_t first, int64_t last) { inner += static_cast<int>(last - first); });
    }
  });
  EXPECT_EQ(inner, 50);
}

TEST_P(ThreadPoolOfSize, WritesOfThreadsAreVisibleAfterRun) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(4096);
  for (int round = 0; round < 20; ++round) {
    pool.split(4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[i] += i;
    });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}),
              int64_t{4096} * 4095 / 2 * (round + 1));
  }
}

TEST_P(ThreadPoolOfSize, SerializesConcurrentCallers) {
  ThreadPool pool(GetParam());
  std::atomic<int> jobs_inside{0};
  std::vector<std::vector<int>> done(4, std::vector<int>(97));
  std::vector<std::thread> callers;
  for (std::vector<int>& mine : done) {
    callers.emplace_back([&pool, &mine, &jobs_inside] {
      for (int round = 0; round < 25; ++round) {
        pool.run([&](int thread) {
          // With one thread there is no shared team, so callers do not wait for each other.
          const bool counts = thread == 0 && pool.size() > 1;
          if (counts) {
            EXPECT_EQ(++jobs_inside, 1);
          }
          const int64_t begin = 97 * thread / pool.size(), end = 97 * (thread + 1) / pool.size();
          for (int64_t i = begin; i < end; ++i) ++mine[i];
          if (counts) --jobs_inside;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::vector<int>& mine : done) EXPECT_EQ(mine, std::vector<int>(97, 25));
}

TEST_P(ThreadPoolOfSize, DestructsWhileIdle) {
  for (int round = 0; round < 20; ++round) {
    const ThreadPool never_used(GetParam());
  }
  for (int round = 0; round < 20; ++round) {
    ThreadPool pool(GetParam());
    std::atomic<int> calls{0};
    pool.run([&](int) { ++calls; });
    EXPECT_EQ(calls, GetParam());
    // Both sleeping and spinning threads end.
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST_P(ThreadPoolOfSize, WakesAfterSleep) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    std::atomic<int> calls{0};
    pool.run([&](int) { ++calls; });
    ASSERT_EQ(calls, GetParam());
  }
}

TEST_P(ThreadPoolOfSize, RethrowsWorkerExceptionInCaller) {
  ThreadPool pool(GetParam());
  for (int thrower = 0; thrower < pool.size(); ++thrower) {
    std::atomic<int> ended{0};
    EXPECT_THROW(pool.run([&](int thread) {
      if (thread == thrower) throw std::bad_alloc();
      ++ended;
    }),
                 std::bad_alloc);
    EXPECT_EQ(ended, pool.size() - 1);  // run() returned after all of them
    std::atomic<int> calls{0};
    pool.run([&](int) { ++calls; });
    EXPECT_EQ(calls, pool.size());
  }
}

#ifndef __SANITIZE_THREAD__  // TSan delivers signals later
// Holds one thread in a signal handler, like a system that gives the thread no CPU.
std::atomic<bool> is_held, may_go;
class HeldThread {
 public:
  explicit HeldThread(pthread_t thread) {
    is_held = may_go = false;
    struct sigaction hold {};
    hold.sa_handler = [](int) {
      is_held = true;
      while (!may_go) {
      }
    };
    ::sigaction(SIGUSR1, &hold, &before_);
    ::pthread_kill(thread, SIGUSR1);
    while (!is_held) std::this_thread::yield();
  }
  ~HeldThread() {
    may_go = true;
    ::sigaction(SIGUSR1, &before_, nullptr);
  }

 private:
  struct sigaction before_ {};
};

TEST_P(ThreadPoolOfSize, OtherThreadsTakeCallOfLateThread) {
  ThreadPool pool(GetParam());
  std::vector<pthread_t> threads(pool.size());
  pool.run_on_each([&](int thread) { threads[thread] = ::pthread_self(); });
  std::vector<int> calls(pool.size());
  int jobs = 0;
  for (int late = 1; late < pool.size(); ++late) {
    {
      const HeldThread held(threads[late]);
      for (int i = 0; i < 50; ++i, ++jobs) pool.run([&](int thread) { ++calls[thread]; });
    }
    // The thread then finds the jobs done, and works again.
    for (int i = 0; i < 50; ++i, ++jobs) pool.run([&](int thread) { ++calls[thread]; });
    pool.run_on_each([&](int thread) { EXPECT_EQ(::pthread_self(), threads[thread]); });
  }
  EXPECT_EQ(calls, std::vector<int>(pool.size(), jobs));
}
#endif

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolOfSize, ::testing::Range(1, 9));

TEST(ThreadPool, DefaultsToAllUsableCpus) {
  EXPECT_GE(usable_threads(), 1);
  EXPECT_EQ(ThreadPool().size(), usable_threads());
  EXPECT_EQ(ThreadPool(0).size(), usable_threads());
}

TEST(ThreadPool, StartsNoThreadsForInvalidCount) {
  for (const int threads : {-1, INT32_MIN, kMaxThreads + 1, 5000, INT32_MAX}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), 1) << threads;
    ASSERT_FALSE(pool.started()) << threads;
    EXPECT_EQ(pool.started().error().to_string(),
              "threads: needs 1 to 4096, or 0 for all CPUs that the process may use; it is " +
                  std::to_string(threads));
  }
}

TEST(ThreadPool, ReportsThreadCreationFailure) {
  EXPECT_TRUE(ThreadPool(3).started());
  const testing::RefusedThreads none;
  ASSERT_TRUE(none.refuses());
  ThreadPool pool(3);
  ASSERT_FALSE(pool.started());
  EXPECT_EQ(pool.started().error().kind, ErrorKind::kOutOfMemory);
  EXPECT_THAT(pool.started().error().to_string(),
              ::testing::HasSubstr("threads: needs at most 1 because the system starts no more; it "
                                   "is 3; the system says: "));
  EXPECT_EQ(pool.size(), 1);
  int calls = 0;
  pool.run([&](int) { ++calls; });
  EXPECT_EQ(calls, 1);
}

// Counts beyond 2^31 stay exact; the ranges are not walked.
TEST(ThreadPool, SplitsCountsBeyond32Bits) {
  ThreadPool pool(3);
  const int64_t count = (int64_t{1} << 40) + 5;
  std::atomic<int64_t> covered{0}, last{0};
  pool.split(count, [&](int64_t begin, int64_t end) {
    covered += end - begin;
    if (end == count) last = begin;
  });
  EXPECT_EQ(covered, count);
  EXPECT_GT(last, count / 2);
}

}  // namespace
}  // namespace moracle::thread_pool_test
