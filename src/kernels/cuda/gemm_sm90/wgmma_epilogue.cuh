// Epilogues of a consumer warpgroup: they scale, add the bias, activate and store. A lane's sums of
// an m64 are two neighbouring outputs of kN / 4 rows.
#pragma once

#include <bit>

#include "base/scalar.h"
#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/gemm_sm90/wgmma_consumer.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/tiles/groups.cuh"
#include "kernels/cuda/tiles/row_factors.cuh"
#include "kernels/cuda/tiles/tile_finder.cuh"
#include "layout/fragment_order.h"

namespace moracle::cuda {

template <class Operand, class Tile, int kN>
class WgmmaEpilogue {
 public:
  using Sums = WgmmaConsumer<Operand, Tile, kN>;
  using Info = typename Tile::Info;

  /// Loads factors: call it before the mainloop to hide their latency.
  __device__ WgmmaEpilogue(const WgmmaArgs& args, const Info& info)
      : a_(args), info_(info), panels_(args, info.tile) {
    const uint8_t* const expert = a_.base + info.tile.expert * a_.expert_bytes;
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
      const int64_t at = int64_t{min(panels_[panel(m)], a_.panels - 1)} * 16 + 2 * lane_row();
      if constexpr (kHasRowFactors<Operand>) {
        scale_[m] = two_row_factors(a_, info.tile.expert, static_cast<int>(at));
      } else if constexpr (kScalesSums<Operand>) {
        const uint8_t* const scales = expert + a_.scales_at;
        scale_[m] = a_.scale_is_exponent
                        ? float2{e8m0_to_float(scales[at]), e8m0_to_float(scales[at + 1])}
                        : *reinterpret_cast<const float2*>(scales + at * 4);
      }
      if (a_.has_bias) bias_[m] = *reinterpret_cast<const float2*>(expert + a_.bias_at + at * 4);
    }
  }

  __device__ __forceinline__ void store_all(const Sums& sums) const {
    if (!a_.gated) {
#pragma unroll
      for (int m = 0; m < Tile::kM; ++m) {
        if (!panels_.there(panel(m))) continue;
        store_panel(panels_[panel(m)],
                    [&](int o, int i, float x_scale) { return total(sums, m, o, i, x_scale); });
      }
    } else if constexpr (Tile::kM == 2) {
      if (!panels_.there(panel(0))) return;
      store_panel(panels_[panel(0)], [&](int o, int i, float x_scale) {
        const float2 gate = total(sums, 0, o, i, x_scale), up = total(sums, 1, o, i, x_scale);
        return float2{activated(a_, gate.x, up.x), activated(a_, gate.y, up.y)};
      });
    }
  }

 protected:
  __device__ static int panel(int m) {
    return m * Tile::kHalf + static_cast<int>(threadIdx.x / 32);
  }
  // Returns a lane's two outputs of m64 m for the i-th of its two rows of octet o.
  __device__ float2 total(const Sums& sums, int m, int o, int i, float x_scale) const {
    float2 value{static_cast<float>(sums.total[m][o * 4 + i]),
                 static_cast<float>(sums.total[m][o * 4 + 2 + i])};
    if constexpr (Operand::kUnit != 1) value.x *= Operand::kUnit, value.y *= Operand::kUnit;
    if constexpr (Operand::kXScales == XScales::kToken) value.x *= x_scale, value.y *= x_scale;
    if constexpr (kScalesSums<Operand>) value.x *= scale_[m].x, value.y *= scale_[m].y;
    return {value.x + bias_[m].x, value.y + bias_[m].y};
  }
  template <class ValueOf>
  __device__ __forceinline__ void store_panel(int panel, ValueOf value) const {
    const int column = panel * 16 + 2 * lane_row();
    if (column >= a_.columns) return;
    const int word =
        a_.y_fragments ? static_cast<int>(fragment_order::position(2, column / 2)) : column / 2;
    const int64_t stride = a_.y.stride / 2;
    auto* const y =
        static_cast<Bf16x2*>(a_.y.data) + (info_.tile.first_row + 2 * lane_col()) * stride + word;
    each_row(value, [&](int o, int i, float2 two) {
      y[(o * 8 + i) * stride] = __float22bfloat162_rn(two);
    });
  }
  // Compute the values of absent rows, too: without branches the computations of several rows
  // overlap.
  template <class ValueOf, class Store>
  __device__ __forceinline__ void each_row(ValueOf value, Store store_row) const {
    const int rows = info_.tile.rows - 2 * lane_col();
#pragma unroll
    for (int o = 0; o < kN / 8; ++o) {
      float2 x_scale{1, 1}, two[2];
      if constexpr (Operand::kXScales == XScales::kToken)
        x_scale = *reinterpret_cast<const float2*>(&info_.x_scales[o * 8 + 2 * lane_col()]);
      two[0] = value(o, 0, x_scale.x), two[1] = value(o, 1, x_scale.y);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (o * 8 + i < rows) store_row(o, i, two[i]);
      }
    }
  }

  const WgmmaArgs& a_;
  const Info& info_;
  const TilePanels<Tile> panels_;
  float2 scale_[Tile::kM], bias_[Tile::kM] = {};
};

/// Split-K epilogue: the CTAs of a cluster reduce their partial sums through distributed shared
/// memory. Four sums of a lane are a fragment: an octet of rows of an m64. Each CTA stores its sums
/// over its stages. It then adds and stores every cluster-th fragment of all CTAs. The loop over
/// fragments is rolled: a CTA runs it once, and fetching instructions for one use takes longer than
/// all products of its stages. Issue the loads of a fragment together, since each takes as long as
/// an access to L2.
template <class Operand, class Tile, int kN>
class SplitKEpilogue {
 public:
  using Sum = typename Operand::Sum;
  using Info = typename Tile::Info;
  static constexpr int kOctets = kN / 8, kFragments = Tile::kM * kOctets;
  static constexpr int kFragmentBytes = Tile::kConsumers * 16;
  static_assert(kFragments * kFragmentBytes <= Tile::kStages * Tile::kStageBytes);

  __device__ SplitKEpilogue(const WgmmaArgs& a, const WgmmaShared<Tile>& shared, const Info& info)
      : a_(a),
        info_(info),
        panels_(a, info.tile),
        base_(shared_address(shared.base) + threadIdx.x * 16) {}

  __device__ __forceinline__ void run(const WgmmaConsumer<Operand, Tile, kN>& sums) const {
    sync_consumers();  // no warp reads the stages any more
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
#pragma unroll
      for (int o = 0; o < kOctets; ++o)
        store_partial(base_ + (m * kOctets + o) * kFragmentBytes, &sums.total[m][o * 4]);
    }
    cluster_arrive();
    cluster_wait();
    Outputs outputs;
#pragma unroll 1
    for (int fragment = static_cast<int>(cluster_rank()); fragment < kFragments;
         fragment += a_.cluster) {
      uint4 partials[kMostWgmmaCluster];
#pragma unroll
      for (int block = 0; block < kMostWgmmaCluster; ++block)
        if (block < a_.cluster)
          partials[block] = load_cluster_16(base_ + fragment * kFragmentBytes, block);
      if (fragment / kOctets != outputs.m) enter(fragment / kOctets, outputs);
      Sum all[4] = {};
#pragma unroll
      for (int block = 0; block < kMostWgmmaCluster; ++block) {
        if (block >= a_.cluster) break;
        const uint4& partial = partials[block];
        all[0] += std::bit_cast<Sum>(partial.x), all[1] += std::bit_cast<Sum>(partial.y);
        all[2] += std::bit_cast<Sum>(partial.z), all[3] += std::bit_cast<Sum>(partial.w);
      }
      store(outputs, fragment % kOctets, all);
    }
    cluster_arrive();
    cluster_wait();  // the sums stay until all CTAs have read them
  }

 private:
  __device__ static void sync_consumers() {
    named_barrier_sync<Tile::kConsumers>(1);
  }
  __device__ static void store_partial(uint32_t to, const Sum* four) {
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
    const uint8_t* const expert = a_.base + info_.tile.expert * a_.expert_bytes;
    if constexpr (kHasRowFactors<Operand>) {
      to.scale = two_row_factors(a_, info_.tile.expert, to.column);
    } else if constexpr (kScalesSums<Operand>) {
      const uint8_t* const scales = expert + a_.scales_at;
      to.scale =
          a_.scale_is_exponent
              ? float2{e8m0_to_float(scales[to.column]), e8m0_to_float(scales[to.column + 1])}
              : *reinterpret_cast<const float2*>(scales + int64_t{to.column} * 4);
    }
    if (a_.has_bias)
      to.bias = *reinterpret_cast<const float2*>(expert + a_.bias_at + int64_t{to.column} * 4);
  }
  // Same arithmetic as WgmmaEpilogue.
  __device__ void store(const Outputs& outputs, int o, const Sum (&all)[4]) const {
    if (!outputs.there) return;
    const int row = o * 8 + 2 * lane_col();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row + i >= info_.tile.rows) return;
      float2 value{static_cast<float>(all[i]), static_cast<float>(all[2 + i])};
      if constexpr (Operand::kUnit != 1) value.x *= Operand::kUnit, value.y *= Operand::kUnit;
      if constexpr (Operand::kXScales == XScales::kToken)
        value.x *= info_.x_scales[row + i], value.y *= info_.x_scales[row + i];
      value.x = value.x * outputs.scale.x + outputs.bias.x;
      value.y = value.y * outputs.scale.y + outputs.bias.y;
      const int64_t at = (info_.tile.first_row + row + i) * a_.y.stride + outputs.column;
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
  const uint32_t base_;  // this lane's part of the first fragment
};

}  // namespace moracle::cuda
