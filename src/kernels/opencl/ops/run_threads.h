#pragma once

#include "kernels/opencl/device/opencl_queue.h"

namespace moracle::opencl {

/// Work-items for a run of `size` columns: a power of two, of at most 256 (MOST_SUMMED in
/// sum_group.cl). Heads have few columns.
inline int64_t run_threads(int64_t size, const Queue& queue) {
  int64_t threads = 32;
  while (threads < 256 && threads * 2 < size) threads *= 2;
  while (threads > queue.max_group) threads /= 2;
  return threads;
}

}  // namespace moracle::opencl
