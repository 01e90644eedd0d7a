// A block computes 16 outputs for up to 8 rows. Its warps share the columns of K, so that the
// block's whole part of the matrix is on its way at once, through shared memory: 64 KB for
// K = 2048, and three blocks per SM. A warp that walks all of K alone has 8 KB in flight, too few
// to keep the memory busy.
//
// A lane copies 16 contiguous bytes of a weight row and later reads just these bytes, so warps
// never wait for each other before the sums. The tensor core sums over columns in any order:
// weights and activations use the order in which they were loaded.
#include "kernels/cuda/dense/cublaslt_plan.h"
#include "kernels/cuda/dense/few_rows.h"
#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace moracle::cuda {
namespace {

static_assert(kFewRows == 8, "one tile of the tensor core's second operand");
constexpr int kOutputs = 16;  // of a block
constexpr int kStep = 64;     // columns that a warp takes at once: a cache line of each weight row
constexpr int kStages = 4;    // steps in flight
constexpr int kFewWarps = 8, kManyWarps = 16;

// The weights of one step: [half of the step][low or high weight row][lane].
using Stage = uint4[2][2][32];
constexpr int shared_bytes(int warps) {
  return warps * kStages * static_cast<int>(sizeof(Stage));
}

// Eight activations of a row, or zeros past the end.
__device__ inline uint4 load8(const uint16_t* row, int64_t column, int64_t k, bool there,
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

// The block's part of one product, as one warp sees it.
struct WarpShare {
  const uint16_t *low, *high;  // weight rows g and g + 8 of the tile
  bool has_low, has_high;
  int64_t k, first, step;  // columns first, first + step, … belong to this warp
  int lane;

  __device__ int64_t column(int64_t i, int half) const {
    return first + i * step + half * 32 + lane % 4 * 8;
  }
  __device__ void copy(Stage& to, int64_t i) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = column(i, half);
      const bool inside = at < k;
      copy_ahead(&to[half][0][lane], inside && has_low ? low + at : low, inside && has_low);
      copy_ahead(&to[half][1][lane], inside && has_high ? high + at : low, inside && has_high);
    }
    close_copies();
  }
};

template <int kWarps>
__global__ void __launch_bounds__(32 * kWarps, kWarps == kFewWarps ? 3 : 1)
    few_rows(const FewRows args, bool aligned) {
  extern __shared__ uint4 shared[];
  __shared__ float sums[kWarps][kOutputs][kFewRows + 1];  // padded against bank conflicts
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t n = args.n, k = args.k, rows = args.x.rows;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kOutputs;
  auto* const stages = reinterpret_cast<Stage*>(shared) + warp * kStages;
  const uint16_t* const low = args.weights + min(first + g, n - 1) * k;
  const WarpShare share{low,
                        args.weights + min(first + g + 8, n - 1) * k,
                        first + g < n,
                        first + g + 8 < n,
                        k,
                        int64_t{kStep} * warp,
                        int64_t{kStep} * kWarps,
                        lane};
  // A warp without columns of its own still copies nothing, as the others count their batches.
#pragma unroll
  for (int s = 0; s < kStages; ++s) share.copy(stages[s], s);
  await_input();
  const auto* const x = static_cast<const uint16_t*>(args.x.data) + g * args.x.stride;
  uint4 of_x[kStages][2];
#pragma unroll
  for (int s = 0; s < kStages; ++s)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      of_x[s][half] = load8(x, share.column(s, half), k, g < rows, aligned);

  float acc[4] = {};
  for (int64_t i = 0; share.first + i * share.step < k; i += kStages) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      await_copies<kStages - 1>();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 l = stages[s][half][0][lane], h = stages[s][half][1][lane];
        const uint4& b = of_x[s][half];
        multiply_add(acc, {l.x, h.x, l.y, h.y}, b.x, b.y);
        multiply_add(acc, {l.z, h.z, l.w, h.w}, b.z, b.w);
        of_x[s][half] = load8(x, share.column(i + s + kStages, half), k, g < rows, aligned);
      }
      share.copy(stages[s], i + s + kStages);
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
    for (int w = 0; w < kWarps; ++w) sum += sums[w][output][row];
    store(args.y, row, first + output, sum);
  }
}

using Kernel = void (*)(FewRows, bool);
constexpr Kernel kKernel[2] = {few_rows<kFewWarps>, few_rows<kManyWarps>};
constexpr int kWarpsOf[2] = {kFewWarps, kManyWarps};

// GPUs of 8.6, 8.9 and 12.0 have 99 KiB of shared memory per block, too few for many warps.
Result<bool> fits_many(int device) {
  int bytes = 0;
  MORACLE_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  constexpr int kSums = kManyWarps * kOutputs * (kFewRows + 1) * static_cast<int>(sizeof(float));
  return bytes >= shared_bytes(kManyWarps) + kSums;
}

}  // namespace

Status multiply_few_rows(const Queue& queue, const FewRows& args, Stream stream) {
  if (args.x.rows == 0) return {};
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  const bool aligned = reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 && args.x.stride % 8 == 0;
  const int64_t blocks = (args.n + kOutputs - 1) / kOutputs;
  // With one block per SM, more warps hold more of K. With several, the SM holds as much.
  bool many = args.k > int64_t{kStep} * kStages * kFewWarps && blocks <= queue.multiprocessors;
  if (many) {
    MORACLE_TRY(many, fits_many(queue.index));
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(32 * kWarpsOf[many]);
  config.dynamicSmemBytes = shared_bytes(kWarpsOf[many]);
  config.stream = queue.of(stream);
  // Lets the weights load while the kernel before this one ends.
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = queue.capability >= 90 ? 1 : 0;
  MORACLE_CUDA(cudaLaunchKernelEx(&config, kKernel[many], args, aligned));
  return launched("few_rows");
}

Status load_few_rows(const Queue& queue) {
  MORACLE_TRY(const bool both, fits_many(queue.index));
  for (int i = 0; i < (both ? 2 : 1); ++i) {
    MORACLE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kKernel[i]),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      shared_bytes(kWarpsOf[i])));
  }
  return {};
}

}  // namespace moracle::cuda
