// Epilogue of tiles whose tokens are the rows of the product: adds the bias, activates and stores.
// A lane has four neighbouring outputs of each panel for two tokens.
#pragma once

#include "kernels/cuda/gemm_sm90/wgmma_tokens.cuh"

namespace moracle::cuda {

template <class Operand, class Tile>
class TokenStore {
 public:
  using Sums = WgmmaTokens<Operand, Tile>;
  using Info = typename Tile::Info;

  __device__ TokenStore(const WgmmaArgs& args, const Info& info)
      : a_(args), info_(info), panels_(args, info.place) {}

  __device__ __forceinline__ void store_all(const Sums& sums) const {
    const int first = static_cast<int>(threadIdx.x / 32) * 16 + lane_row();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (first + 8 * i < info_.place.rows) store_token(sums, i, first + 8 * i);
    }
  }

 private:
  __device__ __forceinline__ void store_token(const Sums& sums, int i, int row) const {
    auto* const y = static_cast<uint16_t*>(a_.y.data) + (info_.place.first_row + row) * a_.y.stride;
    if (!a_.gated) {
#pragma unroll
      for (int q = 0; q < Tile::kAllPanels; ++q) {
        if (panels_.there(q)) store(y + panels_[q] * 16, panels_[q], value(sums, q, i));
      }
      return;
    }
#pragma unroll
    for (int q = 0; q < Tile::kHalf; ++q) {
      if (!panels_.there(q)) continue;
      const float4 gate = value(sums, q, i);
      const float4 up = value(sums, q + Tile::kHalf, i);
      store(y + panels_[q] * 16, panels_[q],
            {activated(gate.x, up.x), activated(gate.y, up.y), activated(gate.z, up.z),
             activated(gate.w, up.w)});
    }
  }

  // The four outputs of panel q of the tile. Its even outputs are eight columns of the product, its
  // odd ones the next eight.
  __device__ __forceinline__ float4 value(const Sums& sums, int q, int i) const {
    constexpr int kPanels = Sums::kWidth / 16;  // of a part
    const float(&part)[Sums::kWidth / 2] = sums.total[q / kPanels];
    const int even = q % kPanels * 8 + 2 * i, odd = even + 4;
    float4 four{part[even], part[odd], part[even + 1], part[odd + 1]};
    if (a_.has_bias) {
      const uint8_t* const expert = a_.base + info_.place.expert * a_.expert_bytes;
      const float4 bias =
          reinterpret_cast<const float4*>(expert + a_.bias_at)[panels_[q] * 4 + lane_col()];
      four.x += bias.x, four.y += bias.y, four.z += bias.z, four.w += bias.w;
    }
    return four;
  }
  // As in mma_linear.
  __device__ float activated(float gate, float up) const {
    gate = gate > a_.limit ? a_.limit : gate;
    up = up > a_.limit ? a_.limit : (up < -a_.limit ? -a_.limit : up);
    return __fdividef(gate, __expf(-a_.sharpness * gate) + 1.0f) * (up + a_.offset);
  }

  __device__ void store(uint16_t* panel, int number, const float4& four) const {
    uint16_t* const to = panel + 4 * lane_col();
    const uint2 pairs{as_bits(__float22bfloat162_rn({four.x, four.y})),
                      as_bits(__float22bfloat162_rn({four.z, four.w}))};
    const int left = a_.columns - number * 16 - 4 * lane_col();
    if (reinterpret_cast<uintptr_t>(to) % 8 == 0 && left >= 4) {
      *reinterpret_cast<uint2*>(to) = pairs;
      return;
    }
    if (left >= 2) *reinterpret_cast<uint32_t*>(to) = pairs.x;
    if (left >= 4) *reinterpret_cast<uint32_t*>(to + 2) = pairs.y;
  }

  const WgmmaArgs& a_;
  const Info& info_;
  const TilePanels<Tile> panels_;
};

}  // namespace moracle::cuda
