// GEMV of a linear layer for up to eight rows. A unit is a panel of 16 outputs. All warps of a CTA
// share the stages of its panels round-robin: small layers have two panels for a CTA, or one.
// Shared memory collects the warps' partial sums of a panel (split-K). The order of an output's sum
// depends on the columns alone. So a row has the same bits beside other rows (batch-invariant), and
// in kernels that compute their rows in a prologue.
#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gemv/round_robin.cuh"
#include "kernels/cuda/gemv/slot_plan.cuh"
#include "kernels/cuda/gemv/stage_sums.cuh"
#include "kernels/cuda/ops/norm_in_block.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/tiles/row_factors.cuh"

namespace moracle::cuda {

/// Sums of some of a CTA's panels, by warp: args.sum_panels of them, in shared memory.
class LinearSums {
 public:
  static constexpr int kWarps = kGemvWarps<1>;

  __device__ LinearSums(float* memory, int rows) : memory_(memory), rows_(rows) {}

  /// `number`: of the panel among those that are kept.
  __device__ void put(int number, const float (&total)[4]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane % 4 * 2 + i;
      if (row < rows_)
        *reinterpret_cast<float2*>(at(number, static_cast<int>(threadIdx.x / 32), row,
                                      lane / 4 * 2)) = {total[i], total[2 + i]};
    }
  }
  __device__ float get(int number, int warp, int row, int output) const {
    return *at(number, warp, row, output);
  }

 private:
  // Rows that a warp stores at once lie in different banks.
  __device__ float* at(int number, int warp, int row, int output) const {
    const int swizzle = row / 2 % 4 * 4;
    return memory_ + ((number * kWarps + warp) * rows_ + row) * 16 + (output ^ swizzle);
  }
  float* memory_;
  int rows_;
};

/// Shared memory behind the rings and the sums.
__device__ inline uint8_t* behind_linear_sums(const GemvArgs& args, uint8_t* rings) {
  return ring_of_warp(args, rings, kGemvWarps<1>) +
         linear_sum_bytes(args.sum_panels, args.slots.num_tokens);
}

/// Runs a CTA's share. `rings`: of all warps, with memory for sums behind them. Calls await()
/// when the first weights are in flight, before it reads x, in all threads.
template <class Operand, int kClose, class Await>
__device__ void run_gemv_linear(const GemvArgs& args, RingBarriers<kGemvWarps<1>>& barriers,
                                uint8_t* rings, const RowsOfX& of_x, Await await) {
  constexpr int kWarps = kGemvWarps<1>;
  const GemmArgs& a = args.matrix;
  const int warp = static_cast<int>(threadIdx.x / 32), rows = args.slots.num_tokens;
  const UnitShare share(a.panels);
  const RoundRobin<kWarps> schedule((a.blocks + kStageBlocks<Operand> - 1) / kStageBlocks<Operand>);
  const UnitStage first = schedule.first(warp);
  const int own = schedule.count(warp, share.count);

  WeightRing<Operand, 1> ring(args, rings, barriers, kWarps);
  UnitStage filled = first;
  int fill_left = own;
  const auto enter_ring = [&] { ring.enter(a.base, {share.first + filled.unit}, filled.step); };
  if (fill_left > 0) enter_ring();
  const auto fill = [&] {
    const bool there = fill_left > 0;
    const UnitStage next = schedule.after(filled);
    ring.fill(there, Operand::kGroups || fill_left == 1 || next.unit != filled.unit);
    if (!there || --fill_left == 0) return;
    const bool enters = next.unit != filled.unit;
    filled = next;
    if (enters) enter_ring();
  };
#pragma unroll 1
  for (int i = 1; i < args.stages; ++i) fill();
  await();

  // x is loaded one stage ahead.
  const int full = a.x_bytes / (kStageBlocks<Operand> * mma16::kCols * Operand::kXBytes);
  StageRows<Operand, 1> x;
  x.enter(a, of_x.first, of_x.stride, [&](int r) { return min(r, rows - 1); });
  if (own > 0) {
    x.go(first.step);
#pragma unroll
    for (int b = 0; b < x.kBlocks; ++b) x.load(a, b);
  }
  LinearSums kept(reinterpret_cast<float*>(ring_of_warp(args, rings, kWarps)), rows);
  StageSums<Operand, 1, 1, kClose> sums;
  UnitStage at = first;
  int left = own;
  for (int begin = 0; begin < share.count; begin += args.sum_panels) {
    const int end = min(begin + args.sum_panels, share.count);
    for (; left > 0 && at.unit < end; --left) {
      const uint8_t* const stage = ring.next();
      fill();
      if (at.step >= full) x.reload(a);
      const UnitStage next = left == 1 ? at : schedule.after(at);
      const bool ends = left == 1 || next.unit != at.unit;
      x.go(next.step);
      sums.add(
          args, stage, at.step, x, ends,
          [](float& total, float sum, float scale, int, int) { total += sum * scale; },
          [&](int b) { x.load(a, b); });
      if (ends) kept.put(at.unit - begin, sums.total[0][0]), sums.clear();
      at = next;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < (end - begin) * rows * 16;
         i += kGemvThreads<1>) {
      const int output = i % 16, row = i / 16 % rows, number = i / 16 / rows;
      const int column = (share.first + begin + number) * 16 + output;
      float sum = 0;
      for (int step = 0; step < schedule.sharers(); ++step)
        sum += kept.get(number, schedule.warp_of(begin + number, step), row, output);
      if constexpr (Operand::kXScales == XScales::kToken) sum *= a.x_scales[row];
      if constexpr (kHasRowFactors<Operand>) sum *= row_factors(a, 0)[column];
      if (a.has_bias) sum += reinterpret_cast<const float*>(a.base + a.bias_at)[column];
      if (column < a.columns) store(a.y, row, column, sum);
    }
    if (end < share.count) __syncthreads();  // before the next sums
  }
}

template <class Operand, int kClose>
__global__ void __maxnreg__(kLinearRegisters) gemv_linear(const __grid_constant__ GemvArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t memory[];
  auto& barriers = *reinterpret_cast<RingBarriers<kGemvWarps<1>>*>(memory);
  run_gemv_linear<Operand, kClose>(args, barriers, memory + sizeof(barriers),
                                   {args.matrix.x, args.matrix.x_stride}, [] {
                                     pdl_wait();
                                     pdl_launch_dependents();
                                   });
#endif
}

/// Vectors of a row of x that a thread normalizes.
inline constexpr int kNormedVectors = kMostNormedCols / (8 * kNormThreads);

/// Shared memory of gemv_norm_linear beside the rings, the sums and the rows of x.
struct alignas(16) NormedShared {
  RingBarriers<kGemvWarps<1>> barriers;
  NormSquares squares;
};

/// gemv_linear with the norm of its input in a prologue. Each CTA computes the norm for itself,
/// which saves a kernel.
template <class Operand, int kClose>
__global__ void __maxnreg__(kLinearRegisters)
    gemv_norm_linear(const __grid_constant__ GemvArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<NormedShared*>(memory);
  uint8_t* const rings = memory + sizeof(shared);
  const AddRmsNorm& norm = args.normed.norm;
  auto* const x = reinterpret_cast<Eight*>(behind_linear_sums(args, rings));
  const int stride = normed_stride(norm.x.cols);
  NormInBlock<kGemvThreads<1>, kNormedVectors> norm_in_block(norm);
  run_gemv_linear<Operand, kClose>(
      args, shared.barriers, rings,
      {reinterpret_cast<const uint8_t*>(x), stride * int64_t{sizeof(Eight)}}, [&] {
        pdl_wait();
        pdl_launch_dependents();
        // CTAs alternate in storing vectors of the sum.
        const unsigned block = blockIdx.x;
        norm_in_block.run(norm, x, stride, shared.squares, [&](int r, int at, const Eight& sum) {
          if ((r + at) % gridDim.x == block) eights(args.normed.sum, r)[at] = sum;
        });
      });
#endif
}

}  // namespace moracle::cuda
