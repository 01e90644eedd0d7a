// Splits the rows of every expert over a device's threads, and places each share's memory on its
// thread's NUMA node.
#pragma once

#include <vector>

#include "base/threads/thread_pool.h"
#include "kernels/weights/kernel_weights.h"

namespace moracle {

struct ByteRange {
  int64_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

/// The bytes of codes that thread `thread` of `threads` reads of each expert, relative to the
/// expert's start. Threads share pairs of panels of 16 rows, as the kernels split them. With
/// `blocks` 2, gate and up go together: the thread reads the same share of both halves of the rows.
std::vector<ByteRange> share_of_thread(const Layout& layout, const MatrixShape& shape, int blocks,
                                       int thread, int threads);

/// Touches the fresh memory of `weights`, so that each page lies on the node of the thread that
/// will read most of it (the system allocates a page on the node of its first touch). Returns false
/// and does nothing if the threads are not pinned or are all on one node.
bool touch_near_threads(const KernelWeights& weights, int blocks, ThreadPool& pool);

}  // namespace moracle
