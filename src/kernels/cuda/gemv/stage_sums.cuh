// Products of one stage: the weights of a warp's panels times few rows of activations.
#pragma once

#include "base/scalar.h"
#include "kernels/cuda/gemv/stage_rows.cuh"
#include "kernels/cuda/operands/unpack.cuh"

namespace moracle::cuda {

/// True for scales that are folded into the weights.
template <class Operand>
inline constexpr bool kFoldsScales = requires {
  Operand::kFolded;
};

/// kClose: k-blocks that share a scale, or fewer.
template <class Operand, int kPanels, int kOctets, int kClose>
class StageSums {
 public:
  using X = StageRows<Operand, kOctets>;
  static constexpr int kBlocks = kStageBlocks<Operand>;
  /// Sums end with each group.
  static constexpr bool kEndsGroups = Operand::kGroups && !kFoldsScales<Operand>;

  /// Adds the products of stage `step`. `add_to(total, sum, scale, o, i)` adds the scaled sum of
  /// row i of a lane's two rows of octet o: after each group, or where groups do not end sums, if
  /// `ends`. `after(b)` runs once k-block b of x has been used.
  template <class AddTo, class After>
  __device__ void add(const GemvArgs& args, const uint8_t* stage, int step, const X& x, bool ends,
                      AddTo add_to, After after) {
    if constexpr (Operand::kHalves) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        add_halves(args, stage, step, x, b, add_to);
        after(b);
      }
    } else {
      add_blocks(args, stage, step, x, ends, add_to, after);
    }
  }

  __device__ void clear() {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[p][o][i] = 0;
      }
    }
  }

  float total[kPanels][kOctets][4] = {};
  /// Scale the sums of a lane's two rows: where they are added over experts, factors of the rows.
  float2 factors[kPanels];

 private:
  using Sum = typename Operand::Sum;
  static constexpr bool kInteger = std::is_same_v<Sum, int32_t>;

  __device__ static int lane() {
    return static_cast<int>(threadIdx.x % 32);
  }

  template <class AddTo, class After>
  __device__ void add_blocks(const GemvArgs& args, const uint8_t* stage, int step, const X& x,
                             bool ends, AddTo add_to, After after) {
#pragma unroll
    for (int first = 0; first < kBlocks; first += kClose) {
      // Columns past the end of a row have no scales.
      if (kEndsGroups && first > 0 && step * kBlocks + first >= args.matrix.blocks) {
#pragma unroll
        for (int b = first; b < first + kClose; ++b) after(b);
        continue;
      }
      const int group = first >> args.scale_shift;
      if (Operand::kZeros && !kInteger && args.matrix.has_zeros) open(args, stage, group);
#pragma unroll
      for (int b = first; b < first + kClose; ++b) {
        if constexpr (kFoldsScales<Operand>) fold(args, stage, b);
        multiply(stage, x, b);
        if (b + 1 < first + kClose || !X::kScales) after(b);
      }
      if (kEndsGroups || ends) close(args, stage, x, first + kClose - 1, group, add_to);
      if constexpr (X::kScales) after(first + kClose - 1);
    }
  }

  __device__ static const uint8_t* codes_of(const uint8_t* stage, int p, int b) {
    return stage + p * kStagePanelBytes<Operand> + b * mma16::block_bytes(Operand::kCodeBits);
  }

  // Adds k-block b in groups of half k-blocks. Halves past the end of a row have no scales.
  template <class AddTo>
  __device__ void add_halves(const GemvArgs& args, const uint8_t* stage, int step, const X& x,
                             int b, AddTo add_to) {
    if constexpr (Operand::kHalves) {  // no other operand has `multiply_half`
      static_assert(!X::kScales);
      const int left = args.matrix.x_bytes / (16 * Operand::kXBytes) - 2 * (step * kBlocks + b);
      if (left <= 0) return;
      uint32_t w_x[kOctets][2 * Operand::kSteps], codes[kPanels][Operand::kCodeBits / 2];
#pragma unroll
      for (int o = 0; o < kOctets; ++o) Operand::activations(x.words[b][o], w_x[o]);
#pragma unroll
      for (int p = 0; p < kPanels; ++p)
        read_half_codes<Operand::kCodeBits>(codes_of(stage, p, b), codes[p]);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        if (s >= left) break;
        const int group = 2 * b + s;
        if (Operand::kZeros && !kInteger && args.matrix.has_zeros) open(args, stage, group);
#pragma unroll
        for (int p = 0; p < kPanels; ++p) {
          uint32_t w[Operand::kTerms][Operand::kSteps][4];
          Operand::weights(codes[p], zeros_[p], w);  // of the other half: not used
#pragma unroll
          for (int o = 0; o < kOctets; ++o) Operand::multiply_half(sum_[p][o], w, w_x[o], s);
        }
        if constexpr (Operand::kMinimums) {
#pragma unroll
          for (int o = 0; o < kOctets; ++o) Operand::sum_half(x_sum_[o], w_x[o], s);
        }
        close(args, stage, x, b, group, add_to);
      }
    }
  }

  __device__ void multiply(const uint8_t* stage, const X& x, int b) {
    uint32_t w_x[kOctets][2 * Operand::kSteps];
#pragma unroll
    for (int o = 0; o < kOctets; ++o) Operand::activations(x.words[b][o], w_x[o]);
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      uint32_t codes[Operand::kCodeBits / 2], w[Operand::kTerms][Operand::kSteps][4];
      read_codes<Operand::kCodeBits>(codes_of(stage, p, b), codes);
      Operand::weights(codes, zeros_[p], w);
#pragma unroll
      for (int s = 0; s < Operand::kSteps; ++s) {
#pragma unroll
        for (int term = 0; term < Operand::kTerms; ++term) {
#pragma unroll
          for (int o = 0; o < kOctets; ++o)
            Operand::multiply(sum_[p][o], w[term][s], w_x[o][2 * s], w_x[o][2 * s + 1]);
        }
      }
    }
    if constexpr (Operand::kMinimums) {
      constexpr uint32_t kOnes[4] = {Operand::kOnes, Operand::kOnes, Operand::kOnes,
                                     Operand::kOnes};
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
#pragma unroll
        for (int s = 0; s < Operand::kSteps; ++s)
          Operand::multiply(x_sum_[o], kOnes, w_x[o][2 * s], w_x[o][2 * s + 1]);
      }
    }
  }

  __device__ static const uint8_t* scales_of(const GemvArgs& args, const uint8_t* stage, int p) {
    return stage + kPanels * kStagePanelBytes<Operand> + p * (args.scale_bytes + args.zero_bytes);
  }
  __device__ void open(const GemvArgs& args, const uint8_t* stage, int group) {
    if constexpr (Operand::kZeros && !kInteger) {
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        const auto* const two = reinterpret_cast<const int8_t*>(
            scales_of(args, stage, p) + args.scale_bytes + group * 16 + 2 * (lane() / 4));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          zeros_[p][h] = Operand::both(Operand::kZeroBase + two[h]);
        }
      }
    }
  }

  // Finds the factors of the weights of k-block b. Columns past the end of a row have finite
  // ones: their codes are zero.
  __device__ void fold(const GemvArgs& args, const uint8_t* stage, int b) {
    int group = b >> args.scale_shift;
    if constexpr (kHasRowFactors<Operand>) group = 2 * b + lane() % 4 / 2;
#pragma unroll
    for (int p = 0; p < kPanels; ++p)
      Operand::factors(scales_of(args, stage, p) + group * 16 + 2 * (lane() / 4), zeros_[p]);
  }

  // Scales the sums since the last close, subtracts the minimums times the sums of x, and adds them
  // to the totals.
  template <class AddTo>
  __device__ void close(const GemvArgs& args, const uint8_t* stage, const X& x, int b, int group,
                        AddTo add_to) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      float scales[2] = {1, 1}, minimums[2] = {};
      if constexpr (Operand::kScaled && !kFoldsScales<Operand>) {
        const uint8_t* const from = scales_of(args, stage, p);
        if constexpr (kHasRowFactors<Operand>) {
          const float2 two = read_e4m3_scales(from + group * 16 + 2 * (lane() / 4));
          scales[0] = two.x, scales[1] = two.y;
        } else if (args.matrix.scale_is_exponent) {
          const uint8_t* const two = from + group * 16 + 2 * (lane() / 4);
          scales[0] = e8m0_to_float(two[0]), scales[1] = e8m0_to_float(two[1]);
        } else {
          const float2 two = reinterpret_cast<const float2*>(from + group * 64)[lane() / 4];
          scales[0] = two.x, scales[1] = two.y;
        }
        if constexpr (Operand::kMinimums) {
          const float2 two =
              reinterpret_cast<const float2*>(from + args.scale_bytes + group * 64)[lane() / 4];
          minimums[0] = two.x, minimums[1] = two.y;
        }
      }
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float scale = scales[i / 2];
          if constexpr (kInteger || kFoldsScales<Operand>) scale *= Operand::kUnit;
          if constexpr (kHasRowFactors<Operand>) scale *= i < 2 ? factors[p].x : factors[p].y;
          if constexpr (X::kScales) scale *= x.scales[b][o][i % 2];
          if constexpr (Operand::kMinimums)
            add_to(total[p][o][i], sum_[p][o][i] * scale - x_sum_[o][i % 2] * minimums[i / 2], 1.0f,
                   o, i % 2);
          else
            add_to(total[p][o][i], static_cast<float>(sum_[p][o][i]), scale, o, i % 2);
          sum_[p][o][i] = 0;
        }
      }
    }
    if constexpr (Operand::kMinimums) {
#pragma unroll
      for (auto& of_octet : x_sum_) {
#pragma unroll
        for (Sum& sum : of_octet) sum = 0;
      }
    }
  }

  Sum sum_[kPanels][kOctets][4] = {};
  Sum x_sum_[Operand::kMinimums ? kOctets : 1][4] = {};
  uint32_t zeros_[kPanels][2] = {};

 public:
  __device__ StageSums() {
#pragma unroll
    for (float2& of_panel : factors) of_panel = {1, 1};
    if constexpr ((Operand::kZeros || Operand::kMinimums) && !kInteger) {
#pragma unroll
      for (auto& of_panel : zeros_) {
#pragma unroll
        for (uint32_t& zero : of_panel) zero = Operand::both(Operand::kZeroBase);
      }
    }
  }
};

}  // namespace moracle::cuda
