// What this CPU can do at most, measured: the two limits that every kernel here is held against.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "moracle/device.h"

namespace moracle::cpu {

/// What is multiplied; sums are f32 or i32.
enum class Arithmetic : uint8_t { kF32, kBf16, kInt8 };

/// The most operations per second, a product and its addition being two.
struct Peak {
  std::string_view name;         ///< "int8 avx512_vnni"
  std::string_view instruction;  ///< the last word of the name: "avx512_vnni"
  Arithmetic arithmetic = Arithmetic::kF32;
  double ops_per_second = 0;
};

struct Limits {
  int threads = 1;
  int64_t buffer_bytes = 0;  ///< that were read in turn
  double read_bytes_per_second = 0;
  std::vector<Peak> peaks;  ///< of the instructions that this CPU has; none on other architectures
};

/// Measures on threads of its own, with memory of its own. Every number is the median of a few
/// runs.
class LimitsProbe {
 public:
  /// `threads` < 1: all that may be used. `buffer_bytes` 0: 1 GiB, or four times the cache that the
  /// system reports where that is more, and no more
  /// than a quarter of the memory; each run reads the next quarter of it (a small one many
  /// times, from a cache). Errors: memory.
  static Result<LimitsProbe> make(int threads, size_t buffer_bytes = 0);

  int threads() const { return pool_->size(); }
  int64_t buffer_bytes() const { return static_cast<int64_t>(buffer_.bytes()); }
  /// Everything; takes about a second and a half.
  Limits measure();
  /// Bytes per second, each thread reading a stream of its own; tens of milliseconds.
  double read_bytes_per_second();
  /// One of measure()'s peaks again.
  double ops_per_second(std::string_view peak);

 private:
  LimitsProbe(std::unique_ptr<ThreadPool> pool, Buffer buffer)
      : pool_(std::move(pool)), buffer_(std::move(buffer)) {}
  double seconds_of_reading(size_t first, size_t bytes, size_t times);

  std::unique_ptr<ThreadPool> pool_;
  Buffer buffer_;
  size_t next_ = 0;  // where the next reading begins
};

}  // namespace moracle::cpu
