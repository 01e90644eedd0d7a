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
  CudaOps(const cuda::Queue& queue, const cuda::DeviceErrors& errors)
      : queue_(queue), device_errors_(errors) {}

  ErrorScopes& error_scopes() override { return device_errors_.scopes(); }
  bool cache_by_head() const override { return true; }

#include "kernels/ops_compressed.inc"
#include "kernels/ops_overrides.inc"
  // Fused here; on a CPU two operations each.
  Status norm_and_gate(const Matrix& x, const GatedNorm& norm, const Matrix& by, int64_t by_dim,
                       int64_t count, const Matrix& out, Stream) override;
  Status add_rms_norm(const Matrix& x, const Matrix& y, const float* weight, float epsilon,
                      const Matrix& out, Stream) override;
  Status rope_and_append(const Matrix& q, const Matrix& k, const Matrix& v, const QkNormRope& rope,
                         const Batch& batch, const LayerCache& cache, Stream) override;

 private:
  const cuda::Queue& queue_;  // owned by the device, which outlives this object
  const cuda::DeviceErrors& device_errors_;
};

}  // namespace moracle
