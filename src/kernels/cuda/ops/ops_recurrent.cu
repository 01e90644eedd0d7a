// Layers with a recurrent state: gates, short convolutions, the gated delta rule.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/norm_rows.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/recurrent/convolve.cuh"
#include "kernels/cuda/recurrent/delta_rule.cuh"
#include "kernels/cuda/recurrent/lightning.cuh"

namespace moracle {
namespace cuda {
namespace {

// The quotient is exact to 2 units in the last place of f32. An exact division takes most of the
// kernels' instructions.
__device__ float gated(float x, float by, Gate function) {
  if (function == Gate::kIdentity) return x * by;
  // Above 20 the logarithm is `by` itself in f32, and the exponential may overflow.
  if (function == Gate::kSoftplus) return x * (by > 20.0f ? by : log1pf(expf(by)));
  return __fdividef(function == Gate::kSilu ? x * by : x, expf(-by) + 1.0f);
}

struct GateElement {
  Matrix x, by;
  int64_t x_dim, by_dim, count;
  Gate function;
  __device__ void operator()(int64_t r, int64_t i) const {
    const int64_t head = i / count, c = i % count, at = head * x_dim + c;
    store(x, r, at, gated(load(x, r, at), load(by, r, head * by_dim + c), function));
  }
};
// The gate for eight columns of bf16; sizes count vectors of eight.
struct GateEights {
  Matrix x, by;
  int64_t x_dim, by_dim, count;
  Gate function;
  __device__ void operator()(int64_t r, int64_t i) const {
    const int64_t head = i / count, c = i % count;
    Eight& at = eights(x, r)[head * x_dim + c];
    const Eight factors = eights(by, r)[head * by_dim + c], own = at;
    float values[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) values[n] = gated(own[n], factors[n], function);
    at = eight_of(values);
  }
};

struct GateHeadsElement {
  Matrix x, by;
  int64_t head_dim;
  Gate function;
  __device__ void operator()(int64_t r, int64_t i) const {
    store(x, r, i, gated(load(x, r, i), load(by, r, i / head_dim), function));
  }
};

struct NormAndGateArgs {
  Matrix x, by, out;
  GatedNorm norm;
  int64_t by_dim, count;
};
constexpr int kGateWarps = 4;
// A warp per run of norm.size columns.
__global__ void __launch_bounds__(32 * kGateWarps) norm_and_gate(const NormAndGateArgs a) {
  pdl_wait();
  pdl_launch_dependents();
  const int64_t size = a.norm.size, runs = a.x.cols / size;
  const int lane = threadIdx.x % 32;
  for (int64_t b = int64_t{blockIdx.x} * kGateWarps + threadIdx.x / 32; b < a.x.rows * runs;
       b += int64_t{gridDim.x} * kGateWarps) {
    const int64_t r = b / runs, first = b % runs * size;
    const int64_t by = first / a.count * a.by_dim + first % a.count;
    float squares = 0;
    for (int64_t c = lane; c < size; c += 32) {
      const float x = load(a.x, r, first + c);
      squares += x * x;
    }
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(kAllLanes, squares, step);
    const float scale = norm_scale(squares, size, a.norm.epsilon);
    for (int64_t c = lane; c < size; c += 32)
      store(a.out, r, first + c,
            gated(load(a.x, r, first + c) * scale * a.norm.weight[c], load(a.by, r, by + c),
                  a.norm.function));
  }
}
// norm_and_gate for runs of 128 columns of bf16: half a warp has a run, a lane eight columns.
__global__ void __launch_bounds__(32 * kGateWarps) norm_and_gate_128(const NormAndGateArgs a) {
  const int lane = threadIdx.x % 16, half = threadIdx.x % 32 / 16;
  const EightWeights weights = norm_weights(a.norm.weight, lane);
  pdl_wait();
  pdl_launch_dependents();
  const auto runs = static_cast<unsigned>(a.x.cols / 128), count = static_cast<unsigned>(a.count);
  const unsigned all = static_cast<unsigned>(a.x.rows) * runs;
  for (unsigned pair = blockIdx.x * kGateWarps + threadIdx.x / 32; 2 * pair < all;
       pair += gridDim.x * kGateWarps) {
    const unsigned run = min(2 * pair + half, all - 1);
    const unsigned r = run / runs, first = run % runs * 128;
    const Eight x = eights(a.x, r)[first / 8 + lane],
                factors = eights(a.by, r)[(first / count * a.by_dim + first % count) / 8 + lane];
    float squares = 0;
    add_squares(x, squares);
    for (int step = 8; step > 0; step /= 2) squares += __shfl_xor_sync(kAllLanes, squares, step);
    const float scale = norm_scale(squares, 128, a.norm.epsilon);
    const float weight[8] = {weights.low.x,  weights.low.y,  weights.low.z,  weights.low.w,
                             weights.high.x, weights.high.y, weights.high.z, weights.high.w};
    float values[8];
#pragma unroll
    for (int n = 0; n < 8; ++n)
      values[n] = gated(x[n] * scale * weight[n], factors[n], a.norm.function);
    if (2 * pair + half < all) eights(a.out, r)[first / 8 + lane] = eight_of(values);
  }
}

// True if rows and columns of bf16 begin at multiples of `columns`.
bool are_whole(std::initializer_list<const Matrix*> matrices, std::initializer_list<int64_t> sizes,
               int64_t columns) {
  return std::all_of(matrices.begin(), matrices.end(),
                     [&](const Matrix* m) {
                       return m->dtype == DType::kBF16 && m->stride % columns == 0 &&
                              reinterpret_cast<uintptr_t>(m->data) %
                                      static_cast<uintptr_t>(2 * columns) ==
                                  0;
                     }) &&
         std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size % columns == 0; });
}

}  // namespace
}  // namespace cuda

Status CudaOps::gate(const Matrix& x, int64_t x_dim, const Matrix& by, int64_t by_dim,
                     int64_t num_heads, int64_t count, Gate function, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x, &by}));
  if (cuda::are_whole({&x, &by}, {x_dim, by_dim, count}, 8))
    return cuda::launch_elements(
        queue_, stream, "gate", x.rows, num_heads * count / 8,
        cuda::GateEights{x, by, x_dim / 8, by_dim / 8, count / 8, function});
  return cuda::launch_elements(queue_, stream, "gate", x.rows, num_heads * count,
                               cuda::GateElement{x, by, x_dim, by_dim, count, function});
}

Status CudaOps::gate_heads(const Matrix& x, const Matrix& by, int64_t head_dim, Gate function,
                           Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x, &by}));
  return cuda::launch_elements(queue_, stream, "gate_heads", x.rows, x.cols,
                               cuda::GateHeadsElement{x, by, head_dim, function});
}

Status CudaOps::norm_and_gate(const Matrix& x, const GatedNorm& norm, const Matrix& by,
                              int64_t by_dim, int64_t count, const Matrix& out, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x, &by, &out}));
  const cuda::NormAndGateArgs args{x, by, out, norm, by_dim, count};
  const bool fits = norm.size == 128 && count % 128 == 0 &&
                    reinterpret_cast<uintptr_t>(norm.weight) % 16 == 0 &&
                    cuda::are_whole({&x, &by, &out}, {by_dim}, 8);
  const int64_t runs = x.rows * (x.cols / norm.size), of_block = cuda::kGateWarps * (fits ? 2 : 1);
  return cuda::launch_early(queue_, stream, "norm_and_gate",
                            fits ? cuda::norm_and_gate_128 : cuda::norm_and_gate,
                            (runs + of_block - 1) / of_block, 32 * cuda::kGateWarps, 0, args);
}

Status CudaOps::convolve(const Matrix& x, const float* weight, const ConvolutionShape& shape,
                         const Batch& batch, const Matrix& out, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x, &out}));
  const cuda::ConvolveArgs args{x, weight, shape, batch, out};
  if (cuda::convolves_eights(args)) return cuda::convolve_eights(args, queue_, stream);
  return cuda::convolve_simply(args, queue_, stream);
}

Status CudaOps::gated_delta(const Matrix& qkv, const Matrix& ba, const float* a_log,
                            const float* dt_bias, const GatedDeltaShape& shape, const Batch& batch,
                            const Matrix& out, std::byte* scratch, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&qkv, &ba, &out}));
  if (shape.key_dim > cuda::kMostDeltaKeys) {
    return Error{ErrorKind::kUnsupported, "", "gated DeltaNet",
                 str("keys of at most ", cuda::kMostDeltaKeys, " columns on cuda"),
                 str("they have ", shape.key_dim)};
  }
  cuda::DeltaArgs args{qkv, ba, out, a_log, dt_bias, shape, batch, batch.num_tokens};
  if (!cuda::chunks_delta_rule(args, queue_)) return cuda::step_delta_rule(args, queue_, stream);
  args.recurrent_tokens = kRecurrentDeltaTokens;
  if (batch.fewest_tokens <= kRecurrentDeltaTokens)
    MORACLE_CHECK(cuda::step_delta_rule(args, queue_, stream));
  return cuda::chunk_delta_rule(args, scratch, queue_, stream);
}

Status CudaOps::lightning(const Matrix& qkv, const float* decays, const LightningShape& shape,
                          const Batch& batch, const Matrix& out, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&qkv, &out}));
  if (shape.head_dim > cuda::kMostLightningDim) {
    return Error{ErrorKind::kUnsupported, "", "lightning attention",
                 str("heads of at most ", cuda::kMostLightningDim, " columns on cuda"),
                 str("they have ", shape.head_dim)};
  }
  return cuda::step_lightning({qkv, out, decays, shape, batch}, queue_, stream);
}

}  // namespace moracle
