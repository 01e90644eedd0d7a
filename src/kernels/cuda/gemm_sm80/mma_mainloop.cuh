// Accumulators of a warp for one tile: products in registers, scaled group by group, and the
// epilogue. Each sum accumulates the columns in order, independent of the tile size and the
// neighbouring rows. Its bits depend only on its own row (batch-invariant).
#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gemm_sm80/mma_loader.cuh"
#include "kernels/cuda/operands/unpack.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/tiles/groups.cuh"
#include "kernels/cuda/tiles/row_factors.cuh"
#include "kernels/cuda/tiles/tile_finder.cuh"

namespace moracle::cuda {

template <class Operand, class Tile>
class MmaSums {
 public:
  __device__ explicit MmaSums(const GemmArgs& args) : a_(args), left_(args.close_blocks) {
    if constexpr ((Operand::kZeros || Operand::kMinimums) && !kInteger) {
#pragma unroll
      for (auto& of_panel : zeros_) {
#pragma unroll
        for (uint32_t& zero : of_panel) zero = Operand::both(Operand::kZeroBase);
      }
    }
  }

  /// Adds the products of a stage whose first k-block is `first`.
  __device__ void add(const uint8_t* stage, int first) {
    if constexpr (Operand::kHalves) {
      const int end = min(Tile::kBlocks, a_.blocks - first);
#pragma unroll 1
      for (int b = 0; b < end; ++b) add_halves(stage, first, b);
    } else {
#pragma unroll
      for (int run = 0; run < Tile::kBlocks; run += kRun) {
        if (run > 0 && first + run >= a_.blocks) break;
        if (!Operand::kGroups || a_.close_blocks % kRun == 0 || a_.close_blocks >= a_.blocks)
          add_run(stage, first, run);
        else
          add_blocks(stage, first, run);
      }
    }
  }

  /// Epilogue: scales, adds the bias, activates and stores. `stage` is the tile's last stage.
  __device__ void finish(const uint8_t* stage, const WorkTile& tile) {
    const TilePanels<Tile> panels(a_, tile);
    if (!a_.gated) {
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) {
        if (!panels.there(panel(p))) continue;
        const Factors factors(*this, stage, p, tile.expert, panels[panel(p)]);
        store_panel(stage, tile, panels[panel(p)],
                    [&](int o, int i, float x_scale) { return total(factors, p, o, i, x_scale); });
      }
      return;
    }
#pragma unroll
    for (int p = 0; p < Tile::kWarpHalf; ++p) {
      if (!panels.there(panel(p))) continue;
      const int q = p + Tile::kWarpHalf;
      const Factors of_gate(*this, stage, p, tile.expert, panels[panel(p)]),
          of_up(*this, stage, q, tile.expert, panels[panel(q)]);
      store_panel(stage, tile, panels[panel(p)], [&](int o, int i, float x_scale) {
        const float2 gate = total(of_gate, p, o, i, x_scale);
        const float2 up = total(of_up, q, o, i, x_scale);
        return float2{activated(a_, gate.x, up.x), activated(a_, gate.y, up.y)};
      });
    }
  }

 private:
  using Sum = typename Operand::Sum;
  static constexpr bool kInteger = std::is_same_v<Sum, int32_t>;
  // Sums of activations, which are multiplied by the zero points of integers or by the minimums.
  static constexpr bool kXSums = (kInteger && Operand::kZeros) || Operand::kMinimums;
  static constexpr int kXRegisters = 2 * Operand::kSteps;

  __device__ static int warp_out() {
    return static_cast<int>(threadIdx.x / 32) % Tile::kWarpsOut;
  }
  __device__ static int warp_row() {
    return static_cast<int>(threadIdx.x / 32) / Tile::kWarpsOut;
  }

  // Returns the number of the warp's panel p within the tile.
  __device__ static int panel(int p) {
    return p / Tile::kWarpHalf * Tile::kHalf + warp_out() * Tile::kWarpHalf + p % Tile::kWarpHalf;
  }

  // k-blocks of a run, which add_run multiplies without looking for the end of a group in between.
  // Most groups contain a whole number of runs.
  static constexpr int kRun = Tile::kBlocks < 4 ? Tile::kBlocks : 4;
  __device__ void add_run(const uint8_t* stage, int first, int run) {
    if (begins_group()) open(stage, first, first + run);
#pragma unroll
    for (int b = 0; b < kRun; ++b) multiply(stage, run + b);
    if (ends_group(first + run + kRun - 1, kRun))
      close(stage, first, min(first + run + kRun, a_.blocks) - 1);
  }
  __device__ void add_blocks(const uint8_t* stage, int first, int run) {
    const int end = min(run + kRun, a_.blocks - first);
#pragma unroll 1
    for (int b = run; b < end; ++b) {
      if (begins_group()) open(stage, first, first + b);
      multiply(stage, b);
      if (ends_group(first + b, 1)) close(stage, first, first + b);
    }
  }
  // Adds k-block b of a stage, half by half.
  __device__ void add_halves(const uint8_t* stage, int first, int b) {
    if constexpr (Operand::kHalves) {  // no other operand has `multiply_half`
      uint32_t x[Tile::kOctets][kXRegisters], codes[Tile::kPanels][Operand::kCodeBits / 2];
      read_x(stage, b, x);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p)
        read_half_codes<Operand::kCodeBits>(codes_of(stage, p, b), codes[p]);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const int half = 2 * (first + b) + s;
        if (half >= sub_blocks()) break;
        if (begins_group()) open(stage, first, half);
#pragma unroll
        for (int p = 0; p < Tile::kPanels; ++p) {
          uint32_t w[Operand::kTerms][Operand::kSteps][4];
          Operand::weights(codes[p], zeros_[p], w);  // of the other half: not used
#pragma unroll
          for (int o = 0; o < Tile::kOctets; ++o) Operand::multiply_half(sum_[p][o], w, x[o], s);
        }
        if constexpr (kXSums) {
          if (Operand::kMinimums || a_.has_zeros) {
#pragma unroll
            for (int o = 0; o < Tile::kOctets; ++o) Operand::sum_half(x_sum_[o], x[o], s);
          }
        }
        if (ends_group(half, 1)) close(stage, first, half);
      }
    }
  }
  __device__ bool begins_group() const {
    return Operand::kZeros && !kInteger && a_.has_zeros && left_ == a_.close_blocks;
  }
  // Sub-blocks of a row that may end a group: k-blocks, or halves of these.
  __device__ int sub_blocks() const {
    return Operand::kHalves ? a_.x_bytes / (16 * Operand::kXBytes) : a_.blocks;
  }
  // Returns true if a group ends after `count` more sub-blocks, the last of which is `sub_block`.
  __device__ bool ends_group(int sub_block, int count) {
    if (!Operand::kGroups) return false;
    left_ -= count;
    return left_ == 0 || sub_block >= sub_blocks() - 1;
  }

  __device__ static const uint8_t* codes_of(const uint8_t* stage, int p, int b) {
    return stage + (panel(p) * Tile::kBlocks + b) * Tile::kBlockBytes;
  }
  __device__ static void read_x(const uint8_t* stage, int b,
                                uint32_t (&x)[Tile::kOctets][kXRegisters]) {
#pragma unroll
    for (int o = 0; o < Tile::kOctets; ++o) {
      const int r = warp_row() * Tile::kWarpRows + o * 8 + lane_row();
      const uint8_t* const row = stage + Tile::kX + (b * Tile::kRows + r) * Tile::kXBlockBytes;
      uint32_t eight[2 * Operand::kXBytes];
      if constexpr (Operand::kHalves) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          uint32_t four[Operand::kXBytes];
          const int at = (s * 4 + lane_col()) * 4 * Operand::kXBytes;
          read_words(row + swizzled_vector<Operand>(r, at / 16) * 16 + at % 16, four);
#pragma unroll
          for (int i = 0; i < Operand::kXBytes; ++i) eight[s * Operand::kXBytes + i] = four[i];
        }
      } else {
        read_words(row + lane_col() * 8 * Operand::kXBytes, eight);
      }
      Operand::activations(eight, x[o]);
    }
  }

  __device__ void multiply(const uint8_t* stage, int b) {
    uint32_t x[Tile::kOctets][kXRegisters];
    read_x(stage, b, x);
#pragma unroll
    for (int p = 0; p < Tile::kPanels; ++p) {
      uint32_t w[Operand::kTerms][Operand::kSteps][4];
      uint32_t codes[Operand::kCodeBits / 2];
      read_codes<Operand::kCodeBits>(codes_of(stage, p, b), codes);
      Operand::weights(codes, zeros_[p], w);
#pragma unroll
      for (int s = 0; s < Operand::kSteps; ++s) {
#pragma unroll
        for (int term = 0; term < Operand::kTerms; ++term) {
#pragma unroll
          for (int o = 0; o < Tile::kOctets; ++o)
            Operand::multiply(sum_[p][o], w[term][s], x[o][2 * s], x[o][2 * s + 1]);
        }
      }
    }
    if constexpr (kXSums) {
      constexpr uint32_t kOnes[4] = {Operand::kOnes, Operand::kOnes, Operand::kOnes,
                                     Operand::kOnes};
      if (Operand::kMinimums || a_.has_zeros) {
#pragma unroll
        for (int o = 0; o < Tile::kOctets; ++o) {
#pragma unroll
          for (int s = 0; s < Operand::kSteps; ++s)
            Operand::multiply(x_sum_[o], kOnes, x[o][2 * s], x[o][2 * s + 1]);
        }
      }
    }
  }

  __device__ static const int8_t* zero_points(const uint8_t* stage, int panel, int group) {
    return reinterpret_cast<const int8_t*>(stage + Tile::kZeros) +
           (panel * Tile::kGroups + group) * 16 + 2 * lane_row();
  }
  // Returns the group of `sub_block` among those of the stage from k-block `first` on.
  __device__ int group_in_stage(int first, int sub_block) const {
    return group_of(a_.weight_groups, sub_block) -
           group_of(a_.weight_groups, first * Tile::kSubBlocks);
  }
  // Begins a group at `sub_block`: loads its zero points as the operand expects them.
  __device__ void open(const uint8_t* stage, int first, int sub_block) {
    if constexpr (Operand::kZeros && !kInteger) {
      const int group = group_in_stage(first, sub_block);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) {
        const int8_t* const two = zero_points(stage, panel(p), group);
#pragma unroll
        for (int h = 0; h < 2; ++h) zeros_[p][h] = Operand::both(Operand::kZeroBase + two[h]);
      }
    }
  }

  // Returns the scales of a lane's two rows.
  __device__ float2 weight_scales(const uint8_t* stage, int panel, int group) const {
    const uint8_t* const run = stage + Tile::kScales + (panel * Tile::kGroups + group) * 64;
    if (a_.scale_size == 4) return reinterpret_cast<const float2*>(run)[lane_row()];
    if (Operand::kHalves && a_.has_row_factors) return read_e4m3_scales(run + 2 * lane_row());
    return {e8m0_to_float(run[2 * lane_row()]), e8m0_to_float(run[2 * lane_row() + 1])};
  }

  // Ends a group at `sub_block`: scales its sums and adds them to the result.
  __device__ void close(const uint8_t* stage, int first, int sub_block) {
    const int group = group_in_stage(first, sub_block);
    float x_scales[Tile::kOctets][2];
    if constexpr (Operand::kXScales == XScales::kGroup) {
      const int x_group =
          group_of(a_.x_groups, sub_block / Tile::kSubBlocks) - group_of(a_.x_groups, first);
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
      float minimums[2] = {};
      if constexpr (Operand::kMinimums) {
        const float2 two = reinterpret_cast<const float2*>(
            stage + Tile::kMinimums + (panel(p) * Tile::kGroups + group) * 64)[lane_row()];
        minimums[0] = two.x, minimums[1] = two.y;
      } else if (kXSums && a_.has_zeros) {
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
          if constexpr (kXSums && !Operand::kMinimums)
            value = static_cast<float>(whole(sum_[p][o][i], zeros[i / 2], x_sum_[o][i % 2]));
          else
            value = static_cast<float>(sum_[p][o][i]);
          if constexpr (kInteger) value *= Operand::kUnit;
          result_[p][o][i] += value * scale;
          if constexpr (Operand::kMinimums)
            result_[p][o][i] -= static_cast<float>(x_sum_[o][i % 2]) * minimums[i / 2];
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

  // Σ x · (q - z) in wrapping arithmetic: only the result has to fit.
  __device__ static int32_t whole(int32_t sum, int32_t zero, int32_t x_sum) {
    const uint32_t of_zero =
        static_cast<uint32_t>(Operand::kOne * zero) * static_cast<uint32_t>(x_sum);
    return static_cast<int32_t>(static_cast<uint32_t>(sum) - of_zero);
  }

  // Scale and bias of a lane's two outputs of panel p, which is panel `number` of the expert.
  struct Factors {
    float2 scale{1, 1}, bias{0, 0};
    __device__ Factors(const MmaSums& sums, const uint8_t* stage, int p, int expert, int number) {
      if constexpr (Operand::kScaled && !Operand::kGroups)
        scale = sums.weight_scales(stage, panel(p), 0);
      if (Operand::kHalves && sums.a_.has_row_factors)
        scale = two_row_factors(sums.a_, expert, number * 16 + 2 * lane_row());
      if (sums.a_.has_bias)
        bias = reinterpret_cast<const float2*>(stage + Tile::kBias)[panel(p) * 8 + lane_row()];
    }
  };
  // Returns a lane's two outputs of panel p for the i-th of its two rows of octet o.
  __device__ float2 total(const Factors& factors, int p, int o, int i, float x_scale) const {
    float2 value;
    if constexpr (Operand::kGroups)
      value = {result_[p][o][i], result_[p][o][2 + i]};
    else
      value = {static_cast<float>(sum_[p][o][i]), static_cast<float>(sum_[p][o][2 + i])};
    if constexpr (Operand::kXScales == XScales::kToken) value.x *= x_scale, value.y *= x_scale;
    if constexpr (Operand::kScaled && (!Operand::kGroups || Operand::kHalves))
      value.x *= factors.scale.x, value.y *= factors.scale.y;
    return {value.x + factors.bias.x, value.y + factors.bias.y};
  }

  /// Stores `value` for each of a lane's rows of a panel. Outputs other than pairs of bf16 have
  /// separate code.
  template <class ValueOf>
  __device__ void store_panel(const uint8_t* stage, const WorkTile& tile, int panel,
                              ValueOf value) {
    const int column = panel * 16 + 2 * lane_row();
    if (a_.y_in_pairs && column + 1 < a_.columns) {
      auto* const y = static_cast<Bf16x2*>(a_.y.data) + column / 2;
      each_row(stage, tile, value,
               [&](int row, float2 two) { y[row * a_.y.stride / 2] = __float22bfloat162_rn(two); });
    } else {
      each_row(stage, tile, value, [&](int row, float2 two) {
        if (column < a_.columns) store(a_.y, row, column, two.x);
        if (column + 1 < a_.columns) store(a_.y, row, column + 1, two.y);
      });
    }
  }
  template <class ValueOf, class Store>
  __device__ static void each_row(const uint8_t* stage, const WorkTile& tile, ValueOf value,
                                  Store store_row) {
#pragma unroll
    for (int o = 0; o < Tile::kOctets; ++o) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = warp_row() * Tile::kWarpRows + o * 8 + lane_col() * 2 + i;
        if (r >= tile.rows) continue;
        float x_scale = 1;
        if constexpr (Operand::kXScales == XScales::kToken)
          x_scale = reinterpret_cast<const float*>(stage + Tile::kXScales)[r];
        store_row(tile.first_row + r, value(o, i, x_scale));
      }
    }
  }

  const GemmArgs& a_;
  int left_;  // sub-blocks until the group ends
  Sum sum_[Tile::kPanels][Tile::kOctets][4] = {};
  float result_[Operand::kGroups ? Tile::kPanels : 1][Operand::kGroups ? Tile::kOctets : 1][4] = {};
  Sum x_sum_[kXSums ? Tile::kOctets : 1][4] = {};
  uint32_t zeros_[Tile::kPanels][2] = {};
};

}  // namespace moracle::cuda
