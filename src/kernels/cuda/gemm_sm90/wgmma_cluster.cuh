// The way out of a tile whose columns the blocks of a cluster share. Four sums of a lane are a
// unit: an octet of rows of an m64. Each block leaves its sums in place of its stages, and then
// adds and stores every cluster-th unit of all blocks. The loop over units is rolled: a block runs
// it once, and instructions that are fetched for one use take longer than all products of its
// stages. Loads of a unit are issued together, since each takes as long as an access to L2.
#pragma once

#include <bit>

#include "kernels/cuda/gemm_sm90/wgmma_sums.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"

namespace moracle::cuda {

template <class Operand, class Tile, int kN>
class ClusterStore {
 public:
  using Sum = typename Operand::Sum;
  using Info = typename Tile::Info;
  static constexpr int kOctets = kN / 8, kUnits = Tile::kM * kOctets;
  static constexpr int kUnitBytes = Tile::kComputers * 16;
  static_assert(kUnits * kUnitBytes <= Tile::kStages * Tile::kStageBytes);

  __device__ ClusterStore(const WgmmaArgs& a, const WgmmaShared<Tile>& shared, const Info& info)
      : a_(a),
        info_(info),
        panels_(a, info.place),
        base_(shared_address(shared.base) + threadIdx.x * 16) {}

  __device__ __forceinline__ void run(const WgmmaSums<Operand, Tile, kN>& sums) const {
    await_computers();  // no warp reads the stages any more
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
#pragma unroll
      for (int o = 0; o < kOctets; ++o)
        leave(base_ + (m * kOctets + o) * kUnitBytes, &sums.total[m][o * 4]);
    }
    cluster_arrive();
    cluster_wait();
    Outputs outputs;
#pragma unroll 1
    for (int unit = static_cast<int>(cluster_rank()); unit < kUnits; unit += a_.cluster) {
      uint4 parts[kMostWgmmaCluster];
#pragma unroll
      for (int block = 0; block < kMostWgmmaCluster; ++block)
        if (block < a_.cluster) parts[block] = load_cluster_16(base_ + unit * kUnitBytes, block);
      if (unit / kOctets != outputs.m) enter(unit / kOctets, outputs);
      Sum all[4] = {};
#pragma unroll
      for (int block = 0; block < kMostWgmmaCluster; ++block) {
        if (block >= a_.cluster) break;
        const uint4& part = parts[block];
        all[0] += std::bit_cast<Sum>(part.x), all[1] += std::bit_cast<Sum>(part.y);
        all[2] += std::bit_cast<Sum>(part.z), all[3] += std::bit_cast<Sum>(part.w);
      }
      store(outputs, unit % kOctets, all);
    }
    cluster_arrive();
    cluster_wait();  // the sums stay until all blocks have read them
  }

 private:
  __device__ static void await_computers() {
    named_barrier_sync<Tile::kComputers>(1);
  }
  __device__ static void leave(uint32_t to, const Sum* four) {
    store_shared_16(to, {std::bit_cast<uint32_t>(four[0]), std::bit_cast<uint32_t>(four[1]),
                         std::bit_cast<uint32_t>(four[2]), std::bit_cast<uint32_t>(four[3])});
  }

  // A lane's two outputs of an m64.
  struct Outputs {
    int m = -1, column = 0;
    bool there = false;
    float2 scale{1, 1}, bias{0, 0};
  };
  __device__ void enter(int m, Outputs& to) const {
    const int q = m * Tile::kHalf + static_cast<int>(threadIdx.x / 32);
    to.m = m, to.column = panels_[q] * 16 + 2 * lane_row();
    to.there = panels_.there(q) && to.column < a_.columns;
    if (!to.there) return;
    const uint8_t* const expert = a_.base + info_.place.expert * a_.expert_bytes;
    if constexpr (Operand::kScaled && !Operand::kGroups) {
      const uint8_t* const scales = expert + a_.scales_at;
      to.scale =
          a_.scale_is_exponent
              ? float2{e8m0_to_float(scales[to.column]), e8m0_to_float(scales[to.column + 1])}
              : *reinterpret_cast<const float2*>(scales + int64_t{to.column} * 4);
    }
    if (a_.has_bias)
      to.bias = *reinterpret_cast<const float2*>(expert + a_.bias_at + int64_t{to.column} * 4);
  }
  // As the epilogue does it.
  __device__ void store(const Outputs& outputs, int o, const Sum (&all)[4]) const {
    if (!outputs.there) return;
    const int row = o * 8 + 2 * lane_col();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row + i >= info_.place.rows) return;
      float2 value{static_cast<float>(all[i]), static_cast<float>(all[2 + i])};
      if constexpr (Operand::kFolded) value.x *= Operand::kUnit, value.y *= Operand::kUnit;
      if constexpr (Operand::kXScales == XScales::kToken)
        value.x *= info_.x_scales[row + i], value.y *= info_.x_scales[row + i];
      value.x = value.x * outputs.scale.x + outputs.bias.x;
      value.y = value.y * outputs.scale.y + outputs.bias.y;
      const int64_t at = (info_.place.first_row + row + i) * a_.y.stride + outputs.column;
      if (a_.y.dtype == DType::kF32)
        *reinterpret_cast<float2*>(static_cast<float*>(a_.y.data) + at) = value;
      else
        *reinterpret_cast<Bf16x2*>(static_cast<uint16_t*>(a_.y.data) + at) =
            __float22bfloat162_rn(value);
    }
  }

  const WgmmaArgs& a_;
  const Info& info_;
  const TilePanels<Tile> panels_;
  const uint32_t base_;  // this lane's part of the first unit
};

}  // namespace moracle::cuda
