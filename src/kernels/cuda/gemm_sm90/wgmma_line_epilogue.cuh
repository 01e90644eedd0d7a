// Epilogue of matrices without gates: a warpgroup stores whole lines of y. The outputs of its four
// warps, 64 of a token, meet in shared memory.
#pragma once

#include "kernels/cuda/gemm_sm90/wgmma_epilogue.cuh"

namespace moracle::cuda {

template <class Operand, class Tile, int kN>
class WgmmaLineEpilogue : private WgmmaEpilogue<Operand, Tile, kN> {
 public:
  using Base = WgmmaEpilogue<Operand, Tile, kN>;
  using Sums = typename Base::Sums;
  using Info = typename Tile::Info;

  __device__ WgmmaLineEpilogue(const WgmmaArgs& args, const WgmmaShared<Tile>& shared,
                               const Info& info)
      : Base(args, info), shared_(shared) {}

  __device__ __forceinline__ void store_all(const Sums& sums) const {
    constexpr int kRows = Tile::kStagedRows, kLoads = kRows / 16;
    const WgmmaArgs& a = this->a_;
    const WorkTile& tile = this->info_.tile;
    const int thread = static_cast<int>(threadIdx.x % 128), group = threadIdx.x / 128;
    auto* const y = static_cast<uint16_t*>(a.y.data);
    const bool aligned = a.y.stride % 8 == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0;
    int buffer = 0;
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
      const int column = this->panels_[m * Tile::kHalf + group * 4] * 16 + thread % 8 * 8;
      const int left = a.columns - column;
#pragma unroll
      for (int c = 0; c < (kN + kRows - 1) / kRows; ++c) {
        if (c * kRows >= tile.rows) break;
        // Two buffers: after the barrier of a step all warps have read the buffer of the step
        // before.
        uint8_t* const staged = shared_.staged(group * 2 + buffer);
        buffer ^= 1;
#pragma unroll
        for (int o = 0; o < kRows / 8; ++o) {
          const int octet = c * (kRows / 8) + o;
          if (octet >= kN / 8) break;
          float2 x_scale{1, 1};
          if constexpr (Operand::kXScales == XScales::kToken)
            x_scale =
                *reinterpret_cast<const float2*>(&this->info_.x_scales[octet * 8 + 2 * lane_col()]);
#pragma unroll
          for (int i = 0; i < 2; ++i)
            *reinterpret_cast<Bf16x2*>(
                vector(staged, o * 8 + 2 * lane_col() + i, thread / 32 * 2 + lane_row() / 4) +
                lane_row() % 4 * 4) =
                __float22bfloat162_rn(
                    this->total(sums, m, octet, i, i == 0 ? x_scale.x : x_scale.y));
        }
        named_barrier_sync<128>(1 + group);
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const int row = i * 16 + thread / 8, token = c * kRows + row;
          if (token >= tile.rows || left <= 0) continue;
          const uint4 eight = *reinterpret_cast<const uint4*>(vector(staged, row, thread % 8));
          uint16_t* const to = y + (tile.first_row + token) * a.y.stride + column;
          if (aligned && left >= 8) {
            *reinterpret_cast<uint4*>(to) = eight;
            continue;
          }
          const uint32_t pairs[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
          for (int pair = 0; pair < 4; ++pair) {
            if (2 * pair < left) *reinterpret_cast<uint32_t*>(to + 2 * pair) = pairs[pair];
          }
        }
      }
    }
    named_barrier_sync<128>(1 + group);  // before the next tile's first step
  }

 private:
  // Vector v of 16 bytes of a staged row; swizzled, so that the four rows that a warp writes at
  // once use all banks.
  __device__ static uint8_t* vector(uint8_t* staged, int row, int v) {
    return staged + row * 128 + ((v ^ row / 2 % 4 * 2) << 4);
  }

  const WgmmaShared<Tile>& shared_;
};

}  // namespace moracle::cuda
