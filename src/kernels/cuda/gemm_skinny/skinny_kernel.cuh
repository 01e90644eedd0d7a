// Skinny GEMM of a linear layer: 17 to 64 tokens, weights of 4 or 8 bits in layout mma16.
//
// So few tokens leave little work for each SM, and latency matters. All weights of a CTA are on
// their way before the previous kernel is complete: its share fits into shared memory, without a
// ring. A CTA multiplies a tile of outputs by a share of the columns (split-K); the CTAs of a
// cluster have the other shares. A warp has two panels of 16 outputs and half of the tokens. It
// sends its sums from registers to the CTA that stores them (st.async).
#pragma once

#include <bit>

#include "base/scalar.h"
#include "kernels/cuda/gemm_skinny/skinny_args.h"
#include "kernels/cuda/operands/mma_operands.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/tiles/groups.cuh"
#include "layout/mma16_block.h"

namespace moracle::cuda {

struct SkinnyBarriers {
  uint64_t weights[kMostSkinnyWarps / 2];  ///< codes and scales of two panels
  uint64_t x[kMostSkinnyChunks];           ///< columns of a chunk
  uint64_t sums;                           ///< sums from the whole cluster
};
static_assert(sizeof(SkinnyBarriers) == kSkinnyBarrierBytes);

/// A warp of a CTA: kOctets octets of tokens, half of the CTA's.
template <class Operand, int kOctets>
class SkinnyWarp {
 public:
  using Sum = typename Operand::Sum;
  static constexpr int kAllOctets = 2 * kOctets, kRows = 8 * kAllOctets;
  static constexpr int kBlockBytes = mma16::block_bytes(Operand::kCodeBits);
  static constexpr int kXBlockBytes = mma16::kCols * Operand::kXBytes;
  static constexpr int kUnitBytes = 512;  // sums of a panel and an octet of tokens
  static constexpr bool kPromoted = Operand::kGroups || Operand::kXScales == XScales::kGroup;

  __device__ SkinnyWarp(const SkinnyArgs& args, uint8_t* memory)
      : a_(args.matrix),
        split_(args.split),
        barriers_(*reinterpret_cast<SkinnyBarriers*>(memory)),
        memory_(memory),
        warp_(static_cast<int>(threadIdx.x / 32)),
        lane_(static_cast<int>(threadIdx.x % 32)),
        pair_(warp_ / 2),
        first_octet_(warp_ % 2 * kOctets),
        rank_(static_cast<int>(cluster_rank())),
        first_panel_(static_cast<int>(blockIdx.x) / args.split.cluster * args.split.tile_panels),
        begin_(rank_ * args.split.share_blocks),
        count_(max(0, min(args.split.share_blocks, args.matrix.blocks - begin_))) {}

  /// Initializes the barriers. All threads of the CTA call it.
  __device__ void init() {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < split_.tile_panels / 2)
      mbarrier_init(shared_address(&barriers_.weights[thread]), 1);
    if (thread < split_.chunks)
      mbarrier_init(shared_address(&barriers_.x[thread]), static_cast<int>(blockDim.x));
    if (thread == 0) {
      mbarrier_init(shared_address(&barriers_.sums), 1);
      mbarrier_arrive_expect_tx(shared_address(&barriers_.sums),
                                own_units() * split_.cluster * kUnitBytes);
    }
    mbarrier_init_fence();
    __syncthreads();
    cluster_arrive_relaxed();  // the other CTAs may send sums from now on
  }

  /// Copies the weights of a pair of panels.
  __device__ void load_weights() {
    if (warp_ % 2 != 0 || lane_ != 0 || count_ == 0) return;
    const uint32_t barrier = shared_address(&barriers_.weights[pair_]);
    const int there = max(0, min(2, a_.panels - first_panel_ - 2 * pair_));
    int first = 0, groups = 0;
    if constexpr (Operand::kGroups) {
      first = group_of(a_.weight_groups, begin_);
      groups = group_of(a_.weight_groups, begin_ + count_ - 1) - first + 1;
    }
    const int zero_bytes = Operand::kZeros && a_.has_zeros ? 16 : 0;
    mbarrier_arrive_expect_tx(barrier, there * (count_ * kBlockBytes + groups * (64 + zero_bytes)));
    for (int i = 0; i < there; ++i) {
      const int64_t panel = first_panel_ + 2 * pair_ + i;
      tma_load_bytes(shared_address(codes(i)), a_.base + (panel * a_.blocks + begin_) * kBlockBytes,
                     count_ * kBlockBytes, barrier);
      if (groups == 0) continue;
      const int64_t run = panel * a_.weight_groups.count + first;
      tma_load_bytes(shared_address(scales(i)), a_.base + a_.scales_at + run * 64, groups * 64,
                     barrier);
      if (zero_bytes > 0)
        tma_load_bytes(shared_address(zeros(i)), a_.base + a_.zeros_at + run * 16, groups * 16,
                       barrier);
    }
  }

  /// All threads copy x, chunk by chunk. Rows past the last are not copied: their sums are not
  /// stored.
  __device__ void load_x() {
    const int warps = static_cast<int>(blockDim.x / 32);
    if constexpr (Operand::kXScales == XScales::kGroup) {
      if (count_ > 0) {
        const int first = group_of(a_.x_groups, begin_);
        const int groups = group_of(a_.x_groups, begin_ + count_ - 1) - first + 1;
        for (int row = static_cast<int>(threadIdx.x); row < a_.num_rows;
             row += static_cast<int>(blockDim.x)) {
          const float* const from = a_.x_scales + int64_t{row} * a_.x_groups.count + first;
          for (int g = 0; g < groups; ++g) cp_async_4(x_scales() + g * kRows + row, from + g, true);
        }
      }
    }
    constexpr int kVectors = kSkinnyChunk * kXBlockBytes / 16;  // of a row and chunk
    constexpr int kRowsAtOnce = 32 / kVectors;
    const int row = warp_ * kRowsAtOnce + lane_ / kVectors, vector = lane_ % kVectors;
    const int step = warps * kRowsAtOnce;
    const uint8_t* const from =
        a_.x + row * a_.x_stride + int64_t{begin_} * kXBlockBytes + vector * 16;
    const uint32_t to = shared_address(x()) + row * split_.x_row_bytes + vector * 16;
    const int64_t from_step = step * a_.x_stride;
    const int to_step = step * split_.x_row_bytes;
    const int vectors = count_ * kXBlockBytes / 16;  // of a row of this CTA
    for (int c = 0; c < split_.chunks; ++c) {
      const int at = c * kVectors;
      if (at + vector < vectors) {
        const uint8_t* p = from + at * 16;
        uint32_t q = to + at * 16;
#pragma unroll 4
        for (int r = row; r < a_.num_rows; r += step, p += from_step, q += to_step)
          cp_async_16(q, p, true);
      }
      mbarrier_arrive_after_cp_async(shared_address(&barriers_.x[c]));
    }
  }

  __device__ __forceinline__ void multiply() {
    clear(total_);
    if (count_ == 0) return;
    mbarrier_wait(shared_address(&barriers_.weights[pair_]), 0);
    if constexpr (!kPromoted) {
      for (int c = 0; c < split_.chunks; ++c) add_chunk(c, total_);
    } else {
      const int close = a_.close_blocks;
      Sum partial[2][kOctets][4];
      clear(partial);
      for (int c = 0; c < split_.chunks; ++c) {
        const int b = c * kSkinnyChunk, end = min(count_, b + kSkinnyChunk);
        if (b >= end) break;
        if (close >= kSkinnyChunk) {
          load_zeros(b);
          add_chunk(c, partial);
          if (end == count_ || (begin_ + end) % close == 0) promote(b, partial);
          continue;
        }
        mbarrier_wait(shared_address(&barriers_.x[c]), 0);
#pragma unroll 1
        for (int i = b; i < end; ++i) {
          load_zeros(i);
          add_block(i, partial);
          if (i + 1 == end || (begin_ + i + 1) % close == 0) promote(i, partial);
        }
      }
    }
  }

  /// Sends the sums to the CTAs that store them.
  __device__ void send() {
    cluster_wait();
    const uint32_t to = shared_address(memory_ + split_.sums_at) + rank_ * kUnitBytes + lane_ * 16;
    const uint32_t barrier = shared_address(&barriers_.sums);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < kOctets; ++n) {
        const unsigned unit = (2 * pair_ + i) * kAllOctets + first_octet_ + n;
        const unsigned slot = unit / split_.cluster, owner = unit - slot * split_.cluster;
        store_async_16(
            to + slot * split_.cluster * kUnitBytes, barrier, owner,
            {std::bit_cast<uint32_t>(total_[i][n][0]), std::bit_cast<uint32_t>(total_[i][n][1]),
             std::bit_cast<uint32_t>(total_[i][n][2]), std::bit_cast<uint32_t>(total_[i][n][3])});
      }
    }
  }

  /// Stores the CTA's share of the outputs: every cluster-th unit.
  __device__ void store() {
    const int units = own_units(), warps = static_cast<int>(blockDim.x / 32);
    const uint8_t* const sums = memory_ + split_.sums_at + lane_ * 16;
    bool waits = true;
#pragma unroll 1
    for (int slot = warp_; slot < units; slot += warps) {
      const int unit = slot * split_.cluster + rank_, q = unit / kAllOctets, n = unit % kAllOctets;
      const int column = (first_panel_ + q) * 16 + 2 * lane_row(), row = n * 8 + 2 * lane_col();
      const bool there = column < a_.columns;
      float2 scale{1, 1}, bias{0, 0}, x_scale{1, 1};
      if (there && Operand::kScaled && !Operand::kGroups)
        scale = *reinterpret_cast<const float2*>(a_.base + a_.scales_at + int64_t{column} * 4);
      if (there && a_.has_bias)
        bias = *reinterpret_cast<const float2*>(a_.base + a_.bias_at + int64_t{column} * 4);
      if constexpr (Operand::kXScales == XScales::kToken) {
        x_scale.x = a_.x_scales[min(row, a_.num_rows - 1)];
        x_scale.y = a_.x_scales[min(row + 1, a_.num_rows - 1)];
      }
      if (waits) mbarrier_wait(shared_address(&barriers_.sums), 0);
      waits = false;
      Sum all[4] = {};
#pragma unroll 4
      for (int s = 0; s < split_.cluster; ++s) {
        const uint4 one = load_shared_16(sums + (slot * split_.cluster + s) * kUnitBytes);
        all[0] += std::bit_cast<Sum>(one.x), all[1] += std::bit_cast<Sum>(one.y);
        all[2] += std::bit_cast<Sum>(one.z), all[3] += std::bit_cast<Sum>(one.w);
      }
      if (!there) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (row + i >= a_.num_rows) break;
        const float by = Operand::kUnit * (i == 0 ? x_scale.x : x_scale.y);
        const float2 value{static_cast<float>(all[i]) * by * scale.x + bias.x,
                           static_cast<float>(all[2 + i]) * by * scale.y + bias.y};
        const int64_t at = (row + i) * a_.y.stride + column;
        if (a_.y.dtype == DType::kF32)
          *reinterpret_cast<float2*>(static_cast<float*>(a_.y.data) + at) = value;
        else
          *reinterpret_cast<Bf16x2*>(static_cast<uint16_t*>(a_.y.data) + at) =
              __float22bfloat162_rn(value);
      }
    }
  }

 private:
  __device__ int own_units() const {
    return (split_.tile_panels * kAllOctets - rank_ + split_.cluster - 1) / split_.cluster;
  }
  __device__ uint8_t* codes(int i) const {
    return memory_ + split_.codes_at + (2 * pair_ + i) * split_.share_blocks * kBlockBytes;
  }
  __device__ uint8_t* scales(int i) const {
    return memory_ + split_.scales_at + (2 * pair_ + i) * split_.share_groups * 64;
  }
  __device__ uint8_t* zeros(int i) const {
    return memory_ + split_.zeros_at + (2 * pair_ + i) * split_.share_groups * 16;
  }
  __device__ uint8_t* x() const {
    return memory_ + split_.x_at;
  }
  __device__ float* x_scales() const {
    return reinterpret_cast<float*>(memory_ + split_.x_scales_at);
  }
  // Index in the share of the group of k-block b.
  __device__ int own_group(const ScaleGroups& groups, int b) const {
    return group_of(groups, begin_ + b) - group_of(groups, begin_);
  }

  __device__ static void clear(Sum (&sums)[2][kOctets][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < kOctets; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][n][j] = 0;
      }
    }
  }

  // Zero points of the group of k-block b.
  __device__ __forceinline__ void load_zeros(int b) {
    if constexpr (Operand::kZeros) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        zero_[i][0] = zero_[i][1] = Operand::both(Operand::kZeroBase);
        if (!a_.has_zeros) continue;
        const auto* const two = reinterpret_cast<const int8_t*>(
            zeros(i) + own_group(a_.weight_groups, b) * 16 + 2 * lane_row());
        zero_[i][0] = Operand::both(Operand::kZeroBase + two[0]);
        zero_[i][1] = Operand::both(Operand::kZeroBase + two[1]);
      }
    }
  }

  __device__ __forceinline__ void add_chunk(int c, Sum (&sums)[2][kOctets][4]) {
    const int b = c * kSkinnyChunk;
    mbarrier_wait(shared_address(&barriers_.x[c]), 0);
    if (b + kSkinnyChunk <= count_) {
#pragma unroll
      for (int i = 0; i < kSkinnyChunk; ++i) add_block(b + i, sums);
    } else {
#pragma unroll 1
      for (int i = b; i < count_; ++i) add_block(i, sums);
    }
  }

  // The products of an instruction step run over all sums before those of the next: the latter wait
  // for the former.
  __device__ __forceinline__ void add_block(int b, Sum (&sums)[2][kOctets][4]) {
    uint32_t w[2][Operand::kTerms][Operand::kSteps][4], second[kOctets][2 * Operand::kSteps];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t words[kBlockBytes / 128];
      read_codes<Operand::kCodeBits>(codes(i) + b * kBlockBytes, words);
      Operand::weights(words, zero_[i], w[i]);
    }
    const uint8_t* const rows = x() + (first_octet_ * 8 + lane_row()) * split_.x_row_bytes +
                                b * kXBlockBytes + lane_col() * 8 * Operand::kXBytes;
#pragma unroll
    for (int n = 0; n < kOctets; ++n) {
      uint32_t eight[2 * Operand::kXBytes];
      read_words(rows + n * 8 * split_.x_row_bytes, eight);
      Operand::activations(eight, second[n]);
    }
#pragma unroll
    for (int s = 0; s < Operand::kSteps; ++s) {
#pragma unroll
      for (int n = 0; n < kOctets; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int term = 0; term < Operand::kTerms; ++term)
            Operand::multiply(sums[i][n], w[i][term][s], second[n][2 * s], second[n][2 * s + 1]);
        }
      }
    }
  }

  // Adds scaled sums to the totals, and clears them. `b`: a k-block of their group.
  __device__ __forceinline__ void promote(int b, Sum (&partial)[2][kOctets][4]) {
    float2 by[2] = {{1, 1}, {1, 1}};
    if constexpr (Operand::kGroups) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        by[i] = reinterpret_cast<const float2*>(scales(i) +
                                                own_group(a_.weight_groups, b) * 64)[lane_row()];
    }
#pragma unroll
    for (int n = 0; n < kOctets; ++n) {
      float2 x_scale{1, 1};
      if constexpr (Operand::kXScales == XScales::kGroup)
        x_scale = *reinterpret_cast<const float2*>(x_scales() + own_group(a_.x_groups, b) * kRows +
                                                   (first_octet_ + n) * 8 + 2 * lane_col());
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float scale = j < 2 ? by[i].x : by[i].y;
          if constexpr (Operand::kXScales == XScales::kGroup)
            scale *= j % 2 == 0 ? x_scale.x : x_scale.y;
          total_[i][n][j] += partial[i][n][j] * scale;
          partial[i][n][j] = 0;
        }
      }
    }
  }

  const GemmArgs& a_;
  const SkinnySplit& split_;
  SkinnyBarriers& barriers_;
  uint8_t* memory_;
  const int warp_, lane_, pair_, first_octet_, rank_, first_panel_, begin_, count_;
  Sum total_[2][kOctets][4];
  uint32_t zero_[2][2] = {};
};

#if defined(MORACLE_SKINNY_STAMPS)
__device__ long long skinny_stamps[8][1024];
#define MORACLE_STAMP(i) \
  if (threadIdx.x == 0) skinny_stamps[i][blockIdx.x] = clock64()
#else
#define MORACLE_STAMP(i)
#endif

/// kOctets octets of tokens.
template <class Operand, int kOctets>
__global__ void __launch_bounds__(kMostSkinnyWarps * 32, 1)
    skinny_linear(const __grid_constant__ SkinnyArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  MORACLE_STAMP(0);
  SkinnyWarp<Operand, kOctets / 2> warp(args, memory);
  warp.init();
  warp.load_weights();
  MORACLE_STAMP(1);
  pdl_wait();
  pdl_launch_dependents();
  MORACLE_STAMP(2);
  warp.load_x();
  MORACLE_STAMP(3);
  warp.multiply();
  MORACLE_STAMP(4);
  warp.send();
  MORACLE_STAMP(5);
  warp.store();
  MORACLE_STAMP(6);
#endif
}

#undef MORACLE_STAMP

}  // namespace moracle::cuda
