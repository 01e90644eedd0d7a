#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "kernels/ops.h"

namespace moracle {

/// Ops on host memory, activations in f32. Rows are split over the pool's threads.
class CpuOps : public Ops {
 public:
  explicit CpuOps(ThreadPool& pool) : pool_(pool), vector_(cpu::vector_ops()) {
    attending_.own.resize(pool.size());
  }

  /// Several stretches per page: the prefetch of keys does not cross from page to page.
  int64_t cache_page() const override { return 4 * cpu::kAttendStretch; }

  Status convert(const Matrix& from, const Matrix& to, Stream) override;
  Status quantize(const Matrix& from, const QuantKey& key, const Rows& to, Stream) override;
  Status quantize_static(const Matrix& from, const int32_t* row_index,
                         const int32_t* expert_offsets, int64_t num_experts, const float* scales,
                         const QuantKey& key, const Rows& to, Stream) override;
  Status gather_columns(const GroupedRows& rows, const ColumnOrders& orders, const Rows& to,
                        Stream) override;
  Status route(const Matrix& logits, const Routing& routing, const float* correction_bias,
               int64_t top_k, int32_t* topk_ids, float* topk_weights, Stream) override;
  Status plan_rows(const int32_t* topk_ids, int64_t num_tokens, int64_t top_k, int64_t num_experts,
                   const int32_t* expert_map, int64_t num_local, const RowPlan& plan,
                   Stream) override;
  Status plan_batched_rows(const int32_t* counts, int64_t num_experts, int64_t max_tokens,
                           const RowPlan& plan, Stream) override;
  Status scale_rows(const Matrix& from, const float* weights, const Matrix& to, Stream) override;
  Status add_lora(const Matrix& x, const int32_t* row_index, const RowPlan& rows,
                  const int32_t* lora_ids, int64_t adapters, const LoraTable& table,
                  const Matrix& y, Stream) override;
  Status activate(const ActivationSpec& activation, int64_t intermediate_size,
                  const Matrix& gate_up, const Matrix& out, Stream) override;
  Status combine(const Matrix& y, const int32_t* slot_row, const float* topk_weights, int64_t top_k,
                 const Matrix& out, Stream) override;

  Status embed(const TensorView& table, const int32_t* ids, const Matrix& out, Stream) override;
  Status rms_norm(const Matrix& x, const float* weight, int64_t weight_size, float epsilon,
                  const Matrix& out, Stream) override;
  Status add(const Matrix& x, const Matrix& y, Stream) override;
  Status rotate(const Matrix& x, const RotaryShape& shape, const float* frequencies,
                const int32_t* positions, Stream) override;
  Status copy_heads(const Matrix& from, int64_t from_dim, const Matrix& to, int64_t to_dim,
                    int64_t num_heads, int64_t count, Stream) override;
  Status append(const Matrix& k, const Matrix& v, const Batch& batch, const LayerCache& cache,
                Stream) override;
  Status attend(const Matrix& q, const Batch& batch, const AttentionShape& shape, const Matrix& out,
                std::byte* scratch, Stream) override;
  Status find_top_k(const Matrix& numbers, int64_t k, int32_t* ids, float* values,
                    std::byte* scratch, Stream) override;

  /// The first device error since the last call.
  Status take_device_error();

 private:
  void trouble(const char* place, std::string need, std::string fact);

  void attend_by_stretches(const Matrix& q, const Batch& batch, const AttentionShape& shape,
                           const Matrix& out);
  float* attend_scratch(int thread, int64_t floats);

  /// Rows [0, rows) of `cols` elements each, split over the threads if the work is worth waking
  /// them.
  template <class Piece>
  void split_rows(int64_t rows, int64_t cols, const Piece& piece) {
    // The work of a few microseconds on one thread: about the time that the other threads take to
    // start.
    constexpr int64_t kWorth = 16384;
    pool_.split(rows, piece, (kWorth + cols - 1) / std::max<int64_t>(cols, 1));
  }

  ThreadPool& pool_;
  const cpu::VectorOps& vector_;
  // Scratch of attention, kept from call to call. It grows to the largest size requested.
  struct Attending {
    std::mutex mutex;
    std::vector<std::vector<float>> own;  // one per thread
    std::vector<cpu::AttendRow> rows;
    std::vector<float> parts;
  } attending_;
  std::mutex error_mutex_;  // synchronize() does not wait for other threads' calls
  std::optional<Error> trouble_;
};

/// Row r of an f32 matrix.
inline float* f32_row(const Matrix& m, int64_t r) {
  return static_cast<float*>(m.data) + r * m.stride;
}

}  // namespace moracle
