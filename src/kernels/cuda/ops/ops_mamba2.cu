// Mamba-2, and its gate with RMSNorm.
#include "base/text.h"
#include "base/try.h"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/norm_rows.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/recurrent/mamba2.cuh"

namespace moracle {
namespace cuda {
namespace {

constexpr int kGateThreads = 256;

struct GateAndNormArgs {
  Matrix x, by;
  const float* weight;
  int64_t size;
  float epsilon;

  // The quotient is exact to 2 units in the last place of f32.
  __device__ float gated(int64_t r, int64_t c) const {
    const float gate = load(by, r, c);
    return __fdividef(load(x, r, c) * gate, expf(-gate) + 1.0f);
  }
};
// A block per run of `size` columns.
__global__ void __launch_bounds__(kGateThreads) gate_and_norm(const GateAndNormArgs a) {
  pdl_wait();
  pdl_launch_dependents();
  const int64_t runs = a.x.cols / a.size;
  for (int64_t b = blockIdx.x; b < a.x.rows * runs; b += gridDim.x) {
    const int64_t r = b / runs, first = b % runs * a.size;
    float squares = 0;
    for (int64_t c = first + threadIdx.x; c < first + a.size; c += kGateThreads) {
      const float value = a.gated(r, c);
      squares += value * value;
    }
    const float scale = norm_scale(block_sum(squares), a.size, a.epsilon);
    for (int64_t c = first + threadIdx.x; c < first + a.size; c += kGateThreads)
      store(a.x, r, c, a.gated(r, c) * scale * a.weight[c]);
  }
}

}  // namespace
}  // namespace cuda

Status CudaOps::gate_and_norm(const Matrix& x, const Matrix& by, const float* weight, int64_t size,
                              float epsilon, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x, &by}));
  return cuda::launch_early(queue_, stream, "gate_and_norm", cuda::gate_and_norm,
                            x.rows * (x.cols / size), cuda::kGateThreads, 0,
                            cuda::GateAndNormArgs{x, by, weight, size, epsilon});
}

Status CudaOps::mamba2(const Matrix& xbc, const Matrix& dt, const float* a_log,
                       const float* dt_bias, const float* d, const Mamba2Shape& shape,
                       const Batch& batch, const Matrix& out, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&xbc, &dt, &out}));
  if (shape.state_dim > cuda::kMostMambaStates) {
    return Error{ErrorKind::kUnsupported, "", "Mamba-2",
                 str("states of at most ", cuda::kMostMambaStates, " rows on cuda"),
                 str("they have ", shape.state_dim)};
  }
  cuda::Mamba2Args args{xbc, dt, out, a_log, dt_bias, d, shape, batch, batch.num_tokens};
  if (!cuda::chunks_mamba2(args, queue_)) return cuda::step_mamba2(args, queue_, stream);
  args.recurrent_tokens = kRecurrentMambaTokens;
  if (batch.fewest_tokens <= kRecurrentMambaTokens)
    MORACLE_CHECK(cuda::step_mamba2(args, queue_, stream));
  return cuda::chunk_mamba2(args, queue_, stream);
}

}  // namespace moracle
