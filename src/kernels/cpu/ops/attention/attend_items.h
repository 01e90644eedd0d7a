// What the files of attention on a CPU share.
#pragma once

#include <atomic>

#include "kernels/cpu/simd/vector_ops.h"
#include "moracle/base.h"

namespace moracle::cpu {

/// The element type of a cache of floats.
inline CacheType cache_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CacheType::kBF16;
    case DType::kF16:
      return CacheType::kF16;
    case DType::kF8E4M3:
      return CacheType::kE4M3;
    default:
      return CacheType::kF32;
  }
}

/// Dynamic schedule: the cost of an item varies with its visible context. `next` starts at 0.
template <class Work>
auto dynamic_schedule(std::atomic<int64_t>& next, int64_t count, Work work) {
  return [&next, count, work](int thread) {
    for (int64_t i = next++; i < count; i = next++) work(thread, i);
  };
}

/// Waking threads does not pay below some ten microseconds of work: products of attention.
constexpr int64_t kWorthThreads = 200'000;

}  // namespace moracle::cpu
