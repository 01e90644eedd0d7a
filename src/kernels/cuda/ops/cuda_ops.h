#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/cuda/device/device_error.h"
#include "kernels/ops.h"

namespace moracle {

/// Ops on GPU memory. Each op only launches kernels: it allocates nothing and waits for nothing.
/// All ops can thus be captured in a graph, after a first call in which CUDA loads the kernels.
/// Activation matrices are f32, bf16 or f16.
class CudaOps : public Ops {
 public:
  CudaOps(const cuda::Queue& queue, const cuda::DeviceErrors& troubles)
      : queue_(queue), device_errors_(troubles) {}

  int64_t cache_page() const override { return 64; }

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

  Status rms_norm(const Matrix& x, const float* weight, int64_t weight_size, float epsilon,
                  const Matrix& out, Stream) override;
  Status add(const Matrix& x, const Matrix& y, Stream) override;
  Status add_rms_norm(const Matrix& x, const Matrix& y, const float* weight, float epsilon,
                      const Matrix& out, Stream) override;
  Status copy_heads(const Matrix& from, int64_t from_dim, const Matrix& to, int64_t to_dim,
                    int64_t num_heads, int64_t count, Stream) override;
  Status embed(const TensorView& table, const int32_t* ids, const Matrix& out, Stream) override;
  Status rotate(const Matrix& x, const RotaryShape& shape, const float* frequencies,
                const int32_t* positions, Stream) override;
  Status append(const Matrix& k, const Matrix& v, const Batch& batch, const LayerCache& cache,
                Stream) override;
  Status rope_and_append(const Matrix& q, const Matrix& k, const Matrix& v, const QkNormRope& turn,
                         const Batch& batch, const LayerCache& cache, Stream) override;
  Status attend(const Matrix& q, const Batch& batch, const AttentionShape& shape, const Matrix& out,
                std::byte* scratch, Stream) override;
  Status find_top_k(const Matrix& numbers, int64_t k, int32_t* ids, float* values,
                    std::byte* scratch, Stream) override;

 private:
  const cuda::Queue& queue_;  // owned by the device, which outlives this object
  const cuda::DeviceErrors& device_errors_;
};

}  // namespace moracle
