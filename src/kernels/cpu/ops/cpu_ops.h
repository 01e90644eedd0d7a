#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "base/threads/thread_pool.h"
#include "kernels/cpu/ops/attention/largest_scores.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "kernels/ops.h"

namespace moracle {

/// Ops on host memory, activations in f32. Rows are split over the pool's threads.
class CpuOps : public Ops {
 public:
  explicit CpuOps(ThreadPool& pool) : pool_(pool), vector_(cpu::vector_ops()) {
    attending_.own.resize(pool.size());
    attending_.largest.resize(pool.size());
  }

  ErrorScopes& error_scopes() override { return error_scopes_; }
  // Adjacent keys of a head are one stream of memory, which prefetchers follow.
  bool cache_by_head() const override { return true; }

#include "kernels/ops_compressed.inc"
#include "kernels/ops_overrides.inc"

  /// The first device error since the last call.
  Status take_device_error();

 private:
  void keep_error(const char* place, std::string need, std::string fact);

  // select_positions; without weights, select_blocks.
  void select(const Matrix& q, const Matrix* weights, const Batch& batch, const IndexShape& shape,
              int32_t* selected);
  // The tokens that see only selected positions.
  void attend_selected(const Matrix& q, const Batch& batch, const AttentionShape& shape,
                       const Matrix& out);
  void attend_by_kv_blocks(const Matrix& q, const Batch& batch, const AttentionShape& shape,
                           const Matrix& out);
  float* attend_scratch(int thread, int64_t floats);
  // collapse_streams without a projection.
  void average_streams(const Matrix& streams, int64_t num_streams, const Matrix& out);

  /// Rows [0, rows) of `cols` elements each, split over the threads if the work is worth waking
  /// them.
  template <class Work>
  void split_rows(int64_t rows, int64_t cols, const Work& work) {
    // Work of a few microseconds on one thread: about the time that the other threads take to
    // start.
    constexpr int64_t kWorth = 16384;
    pool_.split(rows, work, (kWorth + cols - 1) / std::max<int64_t>(cols, 1));
  }

  ThreadPool& pool_;
  const cpu::VectorOps& vector_;
  // Scratch of attention, kept from call to call. It grows to the largest size requested.
  struct Attending {
    std::mutex mutex;
    std::vector<std::vector<float>> own;  // one per thread
    std::vector<cpu::AttendRow> rows;
    std::vector<float> partials;
    std::vector<float> scores;                // of the indexer
    std::vector<cpu::LargestScores> largest;  // one per thread
  } attending_;
  std::mutex error_mutex_;  // synchronize() does not wait for other threads' calls
  std::optional<Error> error_;
  ErrorScopes error_scopes_;
};

/// Row r of an f32 matrix.
inline float* f32_row(const Matrix& m, int64_t r) {
  return static_cast<float*>(m.data) + r * m.stride;
}

}  // namespace moracle
