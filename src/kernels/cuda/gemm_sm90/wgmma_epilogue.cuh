// Epilogue of a computing warpgroup: scales, adds the bias, activates and stores. A lane's sums of
// an m64 are two neighbouring outputs of kN / 4 rows.
#pragma once

#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/gemm_sm90/wgmma_mainloop.cuh"
#include "layout/fragment_order.h"

namespace moracle::cuda {

template <class Operand, class Tile, int kN>
class WgmmaEpilogue {
 public:
  using Sums = WgmmaSums<Operand, Tile, kN>;
  using Info = typename Tile::Info;

  /// Loads factors: call it before the mainloop to hide their latency.
  __device__ WgmmaEpilogue(const WgmmaArgs& args, const Info& info)
      : a_(args), info_(info), panels_(args, info.place) {
    const uint8_t* const expert = a_.base + info.place.expert * a_.expert_bytes;
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
      const int64_t at = int64_t{min(panels_[panel(m)], a_.panels - 1)} * 16 + 2 * lane_row();
      if constexpr (Operand::kScaled && !Operand::kGroups) {
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
        return float2{activated(gate.x, up.x), activated(gate.y, up.y)};
      });
    }
  }

 private:
  __device__ static int panel(int m) {
    return m * Tile::kHalf + static_cast<int>(threadIdx.x / 32);
  }
  // Returns a lane's two outputs of m64 m for the i-th of its two rows of octet o.
  __device__ float2 total(const Sums& sums, int m, int o, int i, float x_scale) const {
    float2 value{static_cast<float>(sums.total[m][o * 4 + i]),
                 static_cast<float>(sums.total[m][o * 4 + 2 + i])};
    if constexpr (Operand::kFolded) value.x *= Operand::kUnit, value.y *= Operand::kUnit;
    if constexpr (Operand::kXScales == XScales::kToken) value.x *= x_scale, value.y *= x_scale;
    if constexpr (Operand::kScaled && !Operand::kGroups)
      value.x *= scale_[m].x, value.y *= scale_[m].y;
    return {value.x + bias_[m].x, value.y + bias_[m].y};
  }
  // As in mma_linear.
  __device__ float activated(float gate, float up) const {
    gate = gate > a_.limit ? a_.limit : gate;
    up = up > a_.limit ? a_.limit : (up < -a_.limit ? -a_.limit : up);
    return __fdividef(gate, __expf(-a_.sharpness * gate) + 1.0f) * (up + a_.offset);
  }

  template <class ValueOf>
  __device__ __forceinline__ void store_panel(int panel, ValueOf value) const {
    const int column = panel * 16 + 2 * lane_row();
    if (column >= a_.columns) return;
    const int word =
        a_.y_fragments ? static_cast<int>(fragment_order::position(2, column / 2)) : column / 2;
    const int64_t stride = a_.y.stride / 2;
    auto* const y =
        static_cast<Bf16x2*>(a_.y.data) + (info_.place.first_row + 2 * lane_col()) * stride + word;
    each_row(value, [&](int o, int i, float2 two) {
      y[(o * 8 + i) * stride] = __float22bfloat162_rn(two);
    });
  }
  // Values of absent rows are computed, too: without branches many are computed at once.
  template <class ValueOf, class Store>
  __device__ __forceinline__ void each_row(ValueOf value, Store store_row) const {
    const int rows = info_.place.rows - 2 * lane_col();
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

}  // namespace moracle::cuda
