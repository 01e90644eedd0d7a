// What a warp adds up of a tile: products in registers, scaled group by group, and what becomes of
// them in the end. A sum goes through the columns in their order, whatever the tile's size and the
// rows beside it: its bits follow from its own row alone.
#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/mma_loader.cuh"

namespace moracle::cuda {

__device__ inline int lane_row() {
  return static_cast<int>(threadIdx.x % 32 / 4);
}
__device__ inline int lane_col() {
  return static_cast<int>(threadIdx.x % 4);
}

/// What a lane needs of a block: codes of its two rows of each panel, and eight columns of a token
/// of each octet.
template <class Operand, class Tile>
struct MmaShare {
  uint32_t codes[Tile::kPanels][Operand::kCodeBits / 2];
  uint32_t x[Tile::kOctets][2 * Operand::kXBytes];

  /// Of block b of a stage.
  __device__ void read(const uint8_t* stage, int b) {
    read_x(stage, b);
#pragma unroll
    for (int p = 0; p < Tile::kPanels; ++p) read_codes(stage, b, p);
  }
  __device__ void read_x(const uint8_t* stage, int b) {
    const int warp_row = static_cast<int>(threadIdx.x / 32) / Tile::kWarpsOut;
#pragma unroll
    for (int o = 0; o < Tile::kOctets; ++o) {
      const int r = warp_row * Tile::kWarpRows + o * 8 + lane_row();
      words(stage + Tile::kX + (b * Tile::kRows + r) * Tile::kXBlockBytes +
                lane_col() * 8 * Operand::kXBytes,
            x[o]);
    }
  }
  __device__ void read_codes(const uint8_t* stage, int b, int p) {
    const int warp_out = static_cast<int>(threadIdx.x / 32) % Tile::kWarpsOut;
    const int q =
        p / Tile::kWarpHalf * Tile::kHalf + warp_out * Tile::kWarpHalf + p % Tile::kWarpHalf;
    const int at = (q * Tile::kBlocks + b) * Tile::kBlockBytes;
    const int lane = static_cast<int>(threadIdx.x % 32);
    words(stage + at + lane * (Operand::kCodeBits == 4 ? 8 : 16), codes[p]);
  }

 private:
  __device__ static void words(const uint8_t* from, uint32_t (&to)[2]) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    to[0] = two.x, to[1] = two.y;
  }
  __device__ static void words(const uint8_t* from, uint32_t (&to)[4]) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }
  // 16 columns of one instruction, and of the next.
  __device__ static void words(const uint8_t* from, uint32_t (&to)[8]) {
    const auto* const four = reinterpret_cast<const uint4*>(from);
    const uint4 low = four[0], high = four[32];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  }
};

template <class Operand, class Tile>
class MmaSums {
 public:
  using Share = MmaShare<Operand, Tile>;
  __device__ explicit MmaSums(const MmaArgs& args) : a_(args), left_(args.close_blocks) {
    if constexpr (Operand::kZeros && !kInteger) {
#pragma unroll
      for (auto& of_panel : zeros_) {
#pragma unroll
        for (uint32_t& zero : of_panel) zero = both_bf16(Operand::kZeroBase);
      }
    }
  }

  /// The products of a stage whose first block is `first`; `meanwhile` is done while the first of
  /// them are computed.
  template <class Meanwhile>
  __device__ void add_stage(const uint8_t* stage, int first, Meanwhile meanwhile) {
#pragma unroll
    for (int run = 0; run < Tile::kBlocks; run += kRun) {
      if (run == 0 || first + run < a_.blocks) {
        if (!Operand::kGroups || a_.close_blocks % kRun == 0 || a_.close_blocks >= a_.blocks)
          add_run(stage, first, run);
        else
          add_blocks(stage, first, run);
      }
      if (run == 0) meanwhile();
    }
  }

  /// The products of block b alone, of which the lane has read its share.
  __device__ void add_block(const uint8_t* stage, int first, int b, const Share& share) {
    if (first + b >= a_.blocks) return;
    if (begins_group()) open(stage, first, first + b);
    multiply(share, [](int) {});
    if (ends_group(first + b, 1)) close(stage, first, first + b);
  }

  /// Scales, adds the bias, activates and stores; `stage` is the tile's last.
  __device__ void finish(const uint8_t* stage, const TilePlace& place) {
    const TilePanels<Tile> panels(a_, place);
#pragma unroll
    for (int p = 0; p < Tile::kPanels; ++p) {
      if (!panels.there(panel(p)) || (a_.gated && p >= Tile::kWarpHalf)) continue;
      const int column = panels[panel(p)] * 16 + 2 * lane_row();
#pragma unroll
      for (int o = 0; o < Tile::kOctets; ++o) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int r = warp_row() * Tile::kWarpRows + o * 8 + lane_col() * 2 + i;
          if (r >= place.rows) continue;
          float2 value = total(stage, p, o, i, r);
          if (a_.gated) {
            const int other = p < Tile::kWarpHalf ? p + Tile::kWarpHalf : p;
            const float2 up = total(stage, other, o, i, r);
            value.x = activated(value.x, up.x), value.y = activated(value.y, up.y);
          }
          put(place.first_row + r, column, value);
        }
      }
    }
  }

 private:
  using Sum = typename Operand::Sum;
  static constexpr bool kInteger = std::is_same_v<Sum, int32_t>;
  // Exact sums of activations, which zero points multiply.
  static constexpr bool kXSums = kInteger && Operand::kZeros;
  static constexpr int kXRegisters = 2 * Operand::kSteps;

  __device__ static int warp_out() {
    return static_cast<int>(threadIdx.x / 32) % Tile::kWarpsOut;
  }
  __device__ static int warp_row() {
    return static_cast<int>(threadIdx.x / 32) / Tile::kWarpsOut;
  }

  // Which panel of the tile the warp's panel p is.
  __device__ static int panel(int p) {
    return p / Tile::kWarpHalf * Tile::kHalf + warp_out() * Tile::kWarpHalf + p % Tile::kWarpHalf;
  }

  // Blocks that a group has all of or none, most often.
  static constexpr int kRun = Tile::kBlocks < 4 ? Tile::kBlocks : 4;
  __device__ void add_run(const uint8_t* stage, int first, int run) {
    if (begins_group()) open(stage, first, first + run);
#pragma unroll
    for (int b = 0; b < kRun; ++b) {
      Share share;
      share.read_x(stage, run + b);
      multiply(share, [&](int p) { share.read_codes(stage, run + b, p); });
    }
    if (ends_group(first + run + kRun - 1, kRun))
      close(stage, first, min(first + run + kRun, a_.blocks) - 1);
  }
  __device__ void add_blocks(const uint8_t* stage, int first, int run) {
    const int end = min(run + kRun, a_.blocks - first);
#pragma unroll 1
    for (int b = run; b < end; ++b) {
      Share share;
      share.read(stage, b);
      add_block(stage, first, b, share);
    }
  }
  __device__ bool begins_group() const {
    return Operand::kZeros && !kInteger && a_.has_zeros && left_ == a_.close_blocks;
  }
  // After so many blocks, the last of which is `block`.
  __device__ bool ends_group(int block, int count) {
    if (!Operand::kGroups) return false;
    left_ -= count;
    return left_ == 0 || block >= a_.blocks - 1;
  }

  /// `read` comes before codes of a panel are wanted.
  template <class Read>
  __device__ void multiply(const Share& share, Read read) {
    uint32_t x[Tile::kOctets][kXRegisters];
#pragma unroll
    for (int o = 0; o < Tile::kOctets; ++o) Operand::activations(share.x[o], x[o]);
#pragma unroll
    for (int p = 0; p < Tile::kPanels; ++p) {
      uint32_t w[Operand::kParts][Operand::kSteps][4];
      read(p);
      Operand::weights(share.codes[p], zeros_[p], w);
#pragma unroll
      for (int s = 0; s < Operand::kSteps; ++s) {
#pragma unroll
        for (int part = 0; part < Operand::kParts; ++part) {
#pragma unroll
          for (int o = 0; o < Tile::kOctets; ++o)
            Operand::multiply(sum_[p][o], w[part][s], x[o][2 * s], x[o][2 * s + 1]);
        }
      }
    }
    if constexpr (kXSums) {
      constexpr uint32_t kOnes[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
      if (a_.has_zeros) {
#pragma unroll
        for (int o = 0; o < Tile::kOctets; ++o)
          Operand::multiply(x_sum_[o], kOnes, x[o][0], x[o][1]);
      }
    }
  }

  __device__ static const int8_t* zero_points(const uint8_t* stage, int panel, int group) {
    return reinterpret_cast<const int8_t*>(stage + Tile::kZeros) +
           (panel * Tile::kGroups + group) * 16 + 2 * lane_row();
  }
  // A group begins with `block`: its zero points, as the operand takes them.
  __device__ void open(const uint8_t* stage, int first, int block) {
    if constexpr (Operand::kZeros && !kInteger) {
      const int group = group_of(a_.weight_groups, block) - group_of(a_.weight_groups, first);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) {
        const int8_t* const two = zero_points(stage, panel(p), group);
#pragma unroll
        for (int h = 0; h < 2; ++h) zeros_[p][h] = both_bf16(Operand::kZeroBase + two[h]);
      }
    }
  }

  // Of a lane's two rows.
  __device__ float2 weight_scales(const uint8_t* stage, int panel, int group) const {
    const uint8_t* const run = stage + Tile::kScales + (panel * Tile::kGroups + group) * 64;
    if (!a_.scale_is_exponent) return reinterpret_cast<const float2*>(run)[lane_row()];
    return {e8m0_to_float(run[2 * lane_row()]), e8m0_to_float(run[2 * lane_row() + 1])};
  }

  // A group ends with `block`: its sums, scaled, are added to the result.
  __device__ void close(const uint8_t* stage, int first, int block) {
    const int group = group_of(a_.weight_groups, block) - group_of(a_.weight_groups, first);
    float x_scales[Tile::kOctets][2];
    if constexpr (Operand::kXScales == XScales::kGroup) {
      const int x_group = group_of(a_.x_groups, block) - group_of(a_.x_groups, first);
#pragma unroll
      for (int o = 0; o < Tile::kOctets; ++o) {
        const int r = warp_row() * Tile::kWarpRows + o * 8 + lane_col() * 2;
        const float2 two = *reinterpret_cast<const float2*>(stage + Tile::kXScales +
                                                            (x_group * Tile::kRows + r) * 4);
        x_scales[o][0] = two.x, x_scales[o][1] = two.y;
      }
    }
#pragma unroll
    for (int p = 0; p < Tile::kPanels; ++p) {
      const float2 both = weight_scales(stage, panel(p), group);
      const float scales[2] = {both.x, both.y};
      int32_t zeros[2] = {};
      if (kXSums && a_.has_zeros) {
        const int8_t* const two = zero_points(stage, panel(p), group);
        zeros[0] = two[0], zeros[1] = two[1];
      }
#pragma unroll
      for (int o = 0; o < Tile::kOctets; ++o) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float scale = scales[i / 2];
          if constexpr (Operand::kXScales == XScales::kGroup) scale *= x_scales[o][i % 2];
          float value;
          if constexpr (kXSums)
            value = static_cast<float>(whole(sum_[p][o][i], zeros[i / 2], x_sum_[o][i % 2]));
          else
            value = static_cast<float>(sum_[p][o][i]);
          if constexpr (kInteger) value *= Operand::kUnit;
          result_[p][o][i] += value * scale;
          sum_[p][o][i] = 0;
        }
      }
    }
    if constexpr (kXSums) {
#pragma unroll
      for (int o = 0; o < Tile::kOctets; ++o) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x_sum_[o][i] = 0;
      }
    }
    left_ = a_.close_blocks;
  }

  // Σ x · (q - z), in arithmetic that wraps: only what comes out has to fit.
  __device__ static int32_t whole(int32_t sum, int32_t zero, int32_t x_sum) {
    const uint32_t of_zero =
        static_cast<uint32_t>(Operand::kOne * zero) * static_cast<uint32_t>(x_sum);
    return static_cast<int32_t>(static_cast<uint32_t>(sum) - of_zero);
  }

  // Of a lane's two outputs of panel p and row r, the i-th of its two of octet o.
  __device__ float2 total(const uint8_t* stage, int p, int o, int i, int r) const {
    float2 value;
    if constexpr (Operand::kGroups)
      value = {result_[p][o][i], result_[p][o][2 + i]};
    else
      value = {static_cast<float>(sum_[p][o][i]), static_cast<float>(sum_[p][o][2 + i])};
    if constexpr (Operand::kXScales == XScales::kToken) {
      const float scale = reinterpret_cast<const float*>(stage + Tile::kXScales)[r];
      value.x *= scale, value.y *= scale;
    }
    if constexpr (Operand::kScaled && !Operand::kGroups) {
      const float2 scale = weight_scales(stage, panel(p), 0);
      value.x *= scale.x, value.y *= scale.y;
    }
    if (a_.has_bias) {
      const float2 bias =
          reinterpret_cast<const float2*>(stage + Tile::kBias)[panel(p) * 8 + lane_row()];
      value.x += bias.x, value.y += bias.y;
    }
    return value;
  }

  // Comparisons let a NaN through.
  __device__ float activated(float gate, float up) const {
    gate = gate > a_.limit ? a_.limit : gate;
    up = up > a_.limit ? a_.limit : (up < -a_.limit ? -a_.limit : up);
    return gate / (expf(-a_.sharpness * gate) + 1.0f) * (up + a_.offset);
  }

  // Two neighbours of a row of y.
  __device__ void put(int row, int column, float2 value) {
    if (a_.y_in_pairs && column + 1 < a_.columns) {
      auto* const at = static_cast<Bf16x2*>(a_.y.data) + (row * a_.y.stride + column) / 2;
      *at = __float22bfloat162_rn(value);
      return;
    }
    if (column < a_.columns) store(a_.y, row, column, value.x);
    if (column + 1 < a_.columns) store(a_.y, row, column + 1, value.y);
  }

  const MmaArgs& a_;
  int left_;  // blocks until the group ends
  Sum sum_[Tile::kPanels][Tile::kOctets][4] = {};
  float result_[Operand::kGroups ? Tile::kPanels : 1][Operand::kGroups ? Tile::kOctets : 1][4] = {};
  int32_t x_sum_[kXSums ? Tile::kOctets : 1][4] = {};
  uint32_t zeros_[Tile::kPanels][2] = {};
};

}  // namespace moracle::cuda
