// Measures this CPU's limits.
#pragma once

#include "base/threads/thread_pool.h"
#include "kernels/limits.h"

namespace moracle::cpu {

/// Measures on its own threads.
class LimitsProbe final : public moracle::LimitsProbe {
 public:
  /// `threads` < 1: all threads that may be used. `buffer_bytes` 0: the larger of 1 GiB and four
  /// times the reported cache, but at most a quarter of the memory. Each run reads the next quarter
  /// of the buffer (a small quarter many times, from a cache). Errors: memory; kCancelled.
  static Result<LimitsProbe> make(int threads, size_t buffer_bytes = 0,
                                  const Progress& progress = {});

  int threads() const { return pool_->size(); }
  int64_t buffer_bytes() const override { return static_cast<int64_t>(buffer_.bytes()); }
  int64_t memory_bytes() const override;
  Result<Limits> measure(const Progress& progress = {}) override;
  /// Each thread reads its own stream.
  Result<double> read_bytes_per_second() override { return reading(); }
  Result<double> ops_per_second(std::string_view peak) override;

 private:
  LimitsProbe(std::unique_ptr<ThreadPool> pool, Buffer buffer)
      : pool_(std::move(pool)), buffer_(std::move(buffer)) {}
  double reading();
  double seconds_of_reading(size_t first, size_t bytes, size_t times);

  std::unique_ptr<ThreadPool> pool_;
  Buffer buffer_;
  size_t next_ = 0;  // start of the next read
};

}  // namespace moracle::cpu
