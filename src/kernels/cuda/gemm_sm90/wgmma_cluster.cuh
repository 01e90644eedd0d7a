// The way out of a tile whose columns the blocks of a cluster share. Four sums of a lane are a
// unit: an octet of rows of an m64. Each block leaves its sums in place of its stages, and then
// adds and stores every cluster-th unit of all blocks. Loops are rolled: a block runs them once,
// and instructions that are fetched for one use take longer than all products of its stages.
#pragma once

#include <bit>

#include "kernels/cuda/gemm_sm90/wgmma_sums.cuh"

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
#pragma unroll 1
    for (int unit = static_cast<int>(cluster_rank()); unit < kUnits; unit += a_.cluster) {
      Sum all[4] = {};
#pragma unroll 1
      for (int block = 0; block < a_.cluster; ++block) {
        const uint4 part = load_remote(base_ + unit * kUnitBytes, block);
        all[0] += std::bit_cast<Sum>(part.x), all[1] += std::bit_cast<Sum>(part.y);
        all[2] += std::bit_cast<Sum>(part.z), all[3] += std::bit_cast<Sum>(part.w);
      }
      store(unit / kOctets, unit % kOctets, all);
    }
    cluster_arrive();
    cluster_wait();  // the sums stay until all blocks have read them
  }

 private:
  __device__ static void await_computers() {
    asm volatile("bar.sync 1, %0;" ::"n"(Tile::kComputers) : "memory");
  }
  __device__ static void leave(uint32_t to, const Sum* four) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(std::bit_cast<uint32_t>(four[0])), "r"(std::bit_cast<uint32_t>(four[1])),
                 "r"(std::bit_cast<uint32_t>(four[2])), "r"(std::bit_cast<uint32_t>(four[3]))
                 : "memory");
  }

  // The scales and the bias of two outputs.
  struct Pair {
    float2 scale{1, 1}, bias{0, 0};
  };
  __device__ Pair pair_of(int64_t at) const {
    Pair pair;
    const uint8_t* const expert = a_.base + info_.place.expert * a_.expert_bytes;
    if constexpr (Operand::kScaled && !Operand::kGroups) {
      const uint8_t* const scales = expert + a_.scales_at;
      pair.scale = a_.scale_is_exponent
                       ? float2{e8m0_to_float(scales[at]), e8m0_to_float(scales[at + 1])}
                       : *reinterpret_cast<const float2*>(scales + at * 4);
    }
    if (a_.has_bias) pair.bias = *reinterpret_cast<const float2*>(expert + a_.bias_at + at * 4);
    return pair;
  }
  // As the epilogue does it.
  __device__ void store(int m, int o, const Sum (&all)[4]) const {
    const int q = m * Tile::kHalf + static_cast<int>(threadIdx.x / 32);
    const int column = panels_[q] * 16 + 2 * lane_row(), row = o * 8 + 2 * lane_col();
    if (!panels_.there(q) || column >= a_.columns) return;
    const Pair pair = pair_of(column);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row + i >= info_.place.rows) return;
      float2 value{static_cast<float>(all[i]), static_cast<float>(all[2 + i])};
      if constexpr (Operand::kFolded) value.x *= Operand::kUnit, value.y *= Operand::kUnit;
      if constexpr (Operand::kXScales == XScales::kToken)
        value.x *= info_.x_scales[row + i], value.y *= info_.x_scales[row + i];
      value.x = value.x * pair.scale.x + pair.bias.x;
      value.y = value.y * pair.scale.y + pair.bias.y;
      const int64_t at = (info_.place.first_row + row + i) * a_.y.stride + column;
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
