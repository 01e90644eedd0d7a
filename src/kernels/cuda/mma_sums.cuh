// What a warp adds up of a tile: products in registers, scaled group by group, and what becomes of
// them in the end. A sum goes through the columns in their order, whatever the tile's size and the
// rows beside it: its bits follow from its own row alone.
#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/mma_loader.cuh"

namespace moracle::cuda {

template <class Operand, class Tile>
class MmaSums {
 public:
  __device__ explicit MmaSums(const MmaArgs& args)
      : a_(args),
        left_(args.close_blocks),
        whole_runs_(args.close_blocks % kRun == 0 || args.close_blocks >= args.blocks) {
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
  __device__ void add(const uint8_t* stage, int first, Meanwhile meanwhile) {
    if constexpr (!Operand::kGroups) {
#pragma unroll
      for (int b = 0; b < Tile::kBlocks; ++b) {
        multiply(stage, b);
        if (b == 0) meanwhile();
      }
    } else {
#pragma unroll
      for (int run = 0; run < Tile::kBlocks; run += kRun) {
        if (run == 0 || first + run < a_.blocks) {
          if (whole_runs_)
            add_run(stage, first, run);
          else
            add_blocks(stage, first, run);
        }
        if (run == 0) meanwhile();
      }
    }
  }

  /// Scales, adds the bias and stores; `stage` is the tile's last.
  __device__ void finish(const uint8_t* stage, const TilePlace& place) {
    const auto* const x_scales = reinterpret_cast<const float*>(stage + Tile::kXScales);
#pragma unroll
    for (int p = 0; p < Tile::kPanels; ++p) {
      const int panel = warp_out() * Tile::kPanels + p;
      if (place.first_panel + panel >= a_.panels) continue;
      float2 scale{1, 1}, bias{0, 0};
      if (Operand::kScaled && !Operand::kGroups) scale = weight_scales(stage, panel, 0);
      if (a_.has_bias)
        bias = reinterpret_cast<const float2*>(stage + Tile::kBias)[panel * 8 + lane_row()];
#pragma unroll
      for (int o = 0; o < Tile::kOctets; ++o) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int r = warp_row() * Tile::kWarpRows + o * 8 + lane_col() * 2 + i;
          if (r >= place.rows) continue;
          float2 value{total(p, o, i), total(p, o, 2 + i)};
          if constexpr (Operand::kXScales == XScales::kToken)
            value.x *= x_scales[r], value.y *= x_scales[r];
          if (Operand::kScaled && !Operand::kGroups) value.x *= scale.x, value.y *= scale.y;
          put(place.first_row + r, (place.first_panel + panel) * 16 + 2 * lane_row(),
              {value.x + bias.x, value.y + bias.y});
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

  __device__ static int lane_row() {
    return static_cast<int>(threadIdx.x % 32 / 4);
  }
  __device__ static int lane_col() {
    return static_cast<int>(threadIdx.x % 4);
  }
  __device__ static int warp_out() {
    return static_cast<int>(threadIdx.x / 32) % Tile::kWarpsOut;
  }
  __device__ static int warp_row() {
    return static_cast<int>(threadIdx.x / 32) / Tile::kWarpsOut;
  }

  // Blocks that a group has all of or none, most often.
  static constexpr int kRun = Tile::kBlocks < 4 ? Tile::kBlocks : 4;
  __device__ void add_run(const uint8_t* stage, int first, int run) {
    open(stage, first, first + run);
#pragma unroll
    for (int b = 0; b < kRun; ++b) multiply(stage, run + b);
    left_ -= kRun;
    if (left_ == 0 || first + run + kRun >= a_.blocks)
      close(stage, first, min(first + run + kRun, a_.blocks) - 1);
  }
  __device__ void add_blocks(const uint8_t* stage, int first, int run) {
    const int end = min(run + kRun, a_.blocks - first);
#pragma unroll 1
    for (int b = run; b < end; ++b) {
      open(stage, first, first + b);
      multiply(stage, b);
      if (--left_ == 0 || first + b == a_.blocks - 1) close(stage, first, first + b);
    }
  }

  __device__ void multiply(const uint8_t* stage, int b) {
    uint32_t x[Tile::kOctets][kXRegisters];
#pragma unroll
    for (int o = 0; o < Tile::kOctets; ++o) {
      const int r = warp_row() * Tile::kWarpRows + o * 8 + lane_row();
      Operand::activations(stage + Tile::kX + (b * Tile::kRows + r) * Tile::kXBlockBytes +
                               lane_col() * 8 * Operand::kXBytes,
                           x[o]);
    }
    constexpr int kLaneBytes = Operand::kCodeBits == 4 ? 8 : 16;
#pragma unroll
    for (int p = 0; p < Tile::kPanels; ++p) {
      const int at = ((warp_out() * Tile::kPanels + p) * Tile::kBlocks + b) * Tile::kBlockBytes;
      uint32_t w[Operand::kParts][Operand::kSteps][4];
      Operand::weights(stage + at + static_cast<int>(threadIdx.x % 32) * kLaneBytes, zeros_[p], w);
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
  // Where a group begins: its zero points, as the operand takes them.
  __device__ void open(const uint8_t* stage, int first, int block) {
    if constexpr (Operand::kZeros && !kInteger) {
      if (!a_.has_zeros || left_ != a_.close_blocks) return;
      const int group = group_of(a_.weight_groups, block) - group_of(a_.weight_groups, first);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) {
        const int8_t* const two = zero_points(stage, warp_out() * Tile::kPanels + p, group);
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
      const int panel = warp_out() * Tile::kPanels + p;
      const float2 both = weight_scales(stage, panel, group);
      const float scales[2] = {both.x, both.y};
      int32_t zeros[2] = {};
      if (kXSums && a_.has_zeros) {
        const int8_t* const two = zero_points(stage, panel, group);
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

  __device__ float total(int p, int o, int i) const {
    if constexpr (Operand::kGroups)
      return result_[p][o][i];
    else
      return static_cast<float>(sum_[p][o][i]);
  }

  // Two neighbours of a row of y.
  __device__ void put(int row, int column, float2 value) {
    if (a_.y_in_pairs && column + 1 < a_.n) {
      auto* const at = static_cast<Bf16x2*>(a_.y.data) + (row * a_.y.stride + column) / 2;
      *at = __float22bfloat162_rn(value);
      return;
    }
    if (column < a_.n) store(a_.y, row, column, value.x);
    if (column + 1 < a_.n) store(a_.y, row, column + 1, value.y);
  }

  const MmaArgs& a_;
  int left_;  // blocks until the group ends
  const bool whole_runs_;
  Sum sum_[Tile::kPanels][Tile::kOctets][4] = {};
  float result_[Operand::kGroups ? Tile::kPanels : 1][Operand::kGroups ? Tile::kOctets : 1][4] = {};
  int32_t x_sum_[kXSums ? Tile::kOctets : 1][4] = {};
  uint32_t zeros_[Tile::kPanels][2] = {};
};

}  // namespace moracle::cuda
