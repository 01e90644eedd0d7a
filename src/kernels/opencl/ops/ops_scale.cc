// Scales and copies of experts, capped and masked logits.
#include "kernels/opencl/device/launch_elements.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {
namespace opencl::ops_scale {
namespace {

const KernelName kTakeIdentity{"ops/scale.cl", "take_identity"};
const KernelName kScaleByExpert{"ops/scale.cl", "scale_by_expert"};
const KernelName kKeepOwn{"ops/scale.cl", "keep_own"};
const KernelName kCap{"ops/scale.cl", "cap_elements"};
const KernelName kKeepAllowed{"ops/scale.cl", "keep_allowed"};

}  // namespace
}  // namespace opencl::ops_scale

Status OpenClOps::take_identity(int32_t* ids, const float* weights, int64_t num_tokens,
                                int64_t top_k, int64_t num_experts, float* sums, Stream stream) {
  return opencl::launch_elements(queue_, stream, opencl::ops_scale::kTakeIdentity, 1, num_tokens,
                                 ids, weights, num_tokens, top_k, num_experts, sums);
}

Status OpenClOps::scale_by_expert(const int32_t* ids, int64_t count, const float* scales,
                                  float* weights, Stream stream) {
  return opencl::launch_elements(queue_, stream, opencl::ops_scale::kScaleByExpert, 1, count, ids,
                                 count, scales, weights);
}

Status OpenClOps::keep_own(const int32_t* ids, int64_t num_tokens, int64_t top_k,
                           const int32_t* copies, int64_t num_experts, int32_t* own,
                           Stream stream) {
  return opencl::launch_elements(queue_, stream, opencl::ops_scale::kKeepOwn, num_tokens, top_k,
                                 ids, num_tokens, top_k, copies, num_experts, own);
}

Status OpenClOps::cap(const Matrix& x, float cap, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x}));
  return opencl::launch_elements(queue_, stream, opencl::ops_scale::kCap, x.rows, x.cols, x, cap,
                                 x.rows, x.cols);
}

Status OpenClOps::keep_allowed(const Matrix& x, const uint32_t* allowed, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x}));
  return opencl::launch_elements(queue_, stream, opencl::ops_scale::kKeepAllowed, x.rows, x.cols, x,
                                 allowed, (x.cols + 31) / 32, x.rows, x.cols);
}

}  // namespace moracle
