#pragma once

#include "kernels/opencl/device/opencl_errors.h"
#include "kernels/opencl/device/opencl_queue.h"
#include "kernels/ops.h"

namespace moracle {

/// Ops on the memory of an OpenCL device. Each op only launches kernels: it waits for nothing,
/// except that the first call compiles. Activation matrices are f32, bf16 or f16.
class OpenClOps : public Ops {
 public:
  OpenClOps(const opencl::Queue& queue, const opencl::DeviceErrors& errors)
      : queue_(queue), device_errors_(errors) {}

  ErrorScopes& error_scopes() override { return device_errors_.scopes(); }

#include "kernels/ops_overrides.inc"
  Status norm_and_gate(const Matrix& x, const GatedNorm& norm, const Matrix& by, int64_t by_dim,
                       int64_t count, const Matrix& out, Stream) override;

 private:
  const opencl::Queue& queue_;  // owned by the device, which outlives this object
  const opencl::DeviceErrors& device_errors_;
};

}  // namespace moracle
