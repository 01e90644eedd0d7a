// A block computes 16 outputs for up to 8 rows. Its warps share the columns of K, so that the
// block's whole part of the matrix is on its way at once: 128 KB for K = 4096. A warp that walks
// all of K alone has 8 KB in flight, too few to keep the memory busy.
//
// A lane loads 16 contiguous bytes of a weight row and of an activation row. The tensor core sums
// over columns in any order, so both operands use the order in which they were loaded.
#include "kernels/cuda/dense/cublaslt_plan.h"
#include "kernels/cuda/dense/few_rows.h"
#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gemm_sm80/mma.cuh"

namespace moracle::cuda {
namespace {

static_assert(kFewRows == 8, "one tile of the tensor core's second operand");
constexpr int kOutputs = 16;  // of a block
constexpr int kStep = 64;     // columns that a warp takes at once: a cache line of each weight row
constexpr int kAhead = 4;     // steps whose loads are issued together
constexpr int kFewWarps = 8, kManyWarps = 16;

// Eight columns, or zeros past the end.
__device__ inline uint4 load8(const uint16_t* row, int64_t column, int64_t k, bool there) {
  if (!there || column >= k) return {};
  return __ldcs(reinterpret_cast<const uint4*>(row + column));
}
__device__ inline uint4 load8_of_x(const uint16_t* row, int64_t column, int64_t k, bool there,
                                   bool aligned) {
  if (!there || column >= k) return {};
  if (aligned) return *reinterpret_cast<const uint4*>(row + column);
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = row[column + 2 * i] | static_cast<uint32_t>(row[column + 2 * i + 1]) << 16;
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

// Waits for the kernel that writes x, if this kernel was launched before that one ended.
__device__ inline void await_input() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <int kWarps>
__global__ void __launch_bounds__(32 * kWarps) few_rows(const FewRows args, bool aligned) {
  __shared__ float sums[kWarps][kOutputs][kFewRows];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t n = args.n, k = args.k, rows = args.x.rows;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kOutputs;
  const bool low = first + g < n, high = first + g + 8 < n;
  const uint16_t* const w_low = args.weights + (first + g) * k;
  const uint16_t* const w_high = w_low + 8 * k;
  const auto* const x = static_cast<const uint16_t*>(args.x.data) + g * args.x.stride;
  float acc[4] = {};
  bool waits = true;
  for (int64_t from = 0; from < k; from += int64_t{kStep} * kWarps * kAhead) {
    const auto column = [&](int s, int half) {
      return from + (s * kWarps + warp) * kStep + half * 32 + t * 8;
    };
    uint4 w[kAhead][2][2];  // step, half of the step, low or high weight row
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        w[s][half][0] = load8(w_low, column(s, half), k, low);
        w[s][half][1] = load8(w_high, column(s, half), k, high);
      }
    }
    if (waits) await_input();
    waits = false;
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 &l = w[s][half][0], &h = w[s][half][1];
        const uint4 b = load8_of_x(x, column(s, half), k, g < rows, aligned);
        mma_bf16(acc, {l.x, h.x, l.y, h.y}, b.x, b.y);
        mma_bf16(acc, {l.z, h.z, l.w, h.w}, b.z, b.w);
      }
    }
  }
  sums[warp][g][2 * t] = acc[0];
  sums[warp][g][2 * t + 1] = acc[1];
  sums[warp][g + 8][2 * t] = acc[2];
  sums[warp][g + 8][2 * t + 1] = acc[3];
  __syncthreads();
  for (int i = threadIdx.x; i < kOutputs * rows; i += 32 * kWarps) {
    const int output = i % kOutputs, row = i / kOutputs;
    if (first + output >= n) continue;
    float sum = args.bias != nullptr ? args.bias[first + output] : 0;
#pragma unroll
    for (int i_warp = 0; i_warp < kWarps; ++i_warp) sum += sums[i_warp][output][row];
    store(args.y, row, first + output, sum);
  }
}

using Kernel = void (*)(FewRows, bool);
constexpr Kernel kKernels[] = {few_rows<kFewWarps>, few_rows<kManyWarps>};

}  // namespace

Status multiply_few_rows(const Queue& queue, const FewRows& args, Stream stream) {
  if (args.x.rows == 0) return {};
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  const bool aligned = reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 && args.x.stride % 8 == 0;
  // Enough warps to load all columns of a weight row at once, up to 4,096.
  const bool many = args.k > int64_t{kStep} * kAhead * kFewWarps;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((args.n + kOutputs - 1) / kOutputs));
  config.blockDim = dim3(32 * (many ? kManyWarps : kFewWarps));
  config.stream = queue.of(stream);
  // Lets the weights load while the kernel before this one ends.
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = queue.capability >= 90 ? 1 : 0;
  MORACLE_CUDA(cudaLaunchKernelEx(&config, kKernels[many], args, aligned));
  return launched("few_rows");
}

Status load_few_rows() {
  for (const Kernel kernel : kKernels) {
    cudaFuncAttributes attributes{};
    MORACLE_CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
  }
  return {};
}

}  // namespace moracle::cuda
