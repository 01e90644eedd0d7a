#pragma once

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/fused_experts.h"
#include "kernels/grouped_linear.h"
#include "moracle/oracle.h"

namespace moracle::cuda {

/// The experts of a layer for many tokens. Both matrices must outlive the result.
Result<std::unique_ptr<FusedExperts>> make_wgmma_experts(const GroupedLinear& w13,
                                                         const GroupedLinear& w2, const Plan& plan,
                                                         CudaDevice& device);

}  // namespace moracle::cuda
