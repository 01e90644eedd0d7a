// The arguments of the micro-kernels over layout vnni16, and their declarations. This header holds
// plain structs only, since files built for one instruction set include it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "oracle/forms/dot_form.h"

namespace moracle::cpu {

/// Rows of weights (outputs) in a row block, and bytes per row block.
inline constexpr int kPanelRows = 16;
inline constexpr int kRowBlockBytes = 64;
/// Maximum activation rows in one call, and rows of a skinny GEMM.
inline constexpr int kMaxBlockRows = 32;
inline constexpr int kSkinnyRows = 4;

/// Floats in limbs of int8: 127 · 254² steps from 0 to the largest value of a segment, more than
/// half as many as f32 has. Products with 4-bit codes need fewer instructions in limbs than in f32.
inline constexpr int kLimbs = 3;
inline constexpr int kLimbRadix = 254;

/// Floats in int16: this many steps from 0 to the largest value of a segment. An int16 instruction
/// makes twice the products of an f32 instruction. Requests may allow int16.
inline constexpr int kInt16Steps = 32767;

/// A block of activation rows times one or two panels, over segments of columns. The columns of a
/// segment share their scales:
///
///   sum[p][16 r + n] += Σ_u x_scale[r][u] · w_scale[p][u][n] · (Σ_k x[r][k] · w[p][n][k]
///                                                               - zero[p][u][n] · x_sum[r][u])
///
/// Null scales count as 1. Integer sums are exact until they are scaled. Kernels that multiply
/// codes as stored count row blocks of codes, subtract zero points from codes, and count fp4 twice
/// in integer sums; those of bf16 take no zero points.
struct DotArgs {
  /// Row r at x + r · x_stride: 4 bytes for each row block. int8 codes are -127 to 127.
  const std::byte* x = nullptr;
  int64_t x_stride = 0;  ///< bytes; memory for kMaxBlockRows rows is readable
  /// Operand::kBf16: each value is the sum of two terms, and the second one lies `x_low`
  /// bytes behind the first; 0: one term.
  int64_t x_low = 0;
  int rows = 0;       ///< at most kMaxBlockRows
  int most_rows = 0;  ///< maximum over all blocks that meet the same panels
  int panels = 2;
  const std::byte* w[2] = {};  ///< segments · segment_blocks row blocks, on 64-byte boundaries
  int segments = 1;
  int64_t segment_blocks = 0;      ///< a multiple of 8 for AMX tiles
  float* sum[2] = {};              ///< [rows][16]
  bool overwrite = false;          ///< start the sums at 0; do not read the old values
  const float* x_scale = nullptr;  ///< of row r at x_scale[r · x_scale_stride + u · x_scale_step]
  int64_t x_scale_stride = 0;
  int64_t x_scale_step = 0;
  const float* w_scale[2] = {};  ///< [segments][16]
  const int8_t* w_zero[2] = {};  ///< [segments][16], where row blocks hold integers; null: none
  /// Operand::kInt8 and kInt16 only.
  const int32_t* x_sum = nullptr;  ///< Σ x over segment u, of row r at x_sum[r · x_sum_stride + u]
  int64_t x_sum_stride = 0;
  /// The codes to prefetch next. The kernel prefetches one cache line for each panel after every
  /// `prefetch_every` row blocks (1, 2, 4, 8 or 16) that it multiplies; 0: no prefetch. Cache lines
  /// from number `prefetch_switch` on lie `prefetch_jump` bytes further.
  const std::byte* prefetch[2] = {};
  int prefetch_every = 0;
  int64_t prefetch_switch = INT64_MAX;
  int64_t prefetch_jump[2] = {};
};

/// Scales or minimums of a panel as layout vnni16 stores them: f16 factors of kFactorCols columns
/// each, [factors][16], and an integer of each group, [groups][16]. Or f16 scales alone,
/// [groups][16].
struct PanelSteps {
  const uint16_t* factor = nullptr;
  const int8_t* step = nullptr;
};

/// Activation rows times one or two panels whose scales are integers times factors, or f16:
///
///   sum[p][16 r + n] = Σ_s factor[p][s][n] · Σ_l x_scale[r, l][s] · Σ_g step[p][g][n]
///                      · Σ_k x[r, l][k] · (w[p][n][k] - zero)
///                      - Σ_s minimum factor[p][s][n] · Σ_g minimum step[p][g][n]
///                        · minimum_sum[r][g]
///
/// s counts the super-blocks of kFactorCols columns, g the groups of super-block s, l the limbs of
/// a row. Integer sums over a super-block are exact: 256 · 128 · 127 · 128 is below 2^31. With f16
/// scales there are no steps and no minimums, and sums over a group are exact:
///
///   sum[p][16 r + n] = Σ_g factor[p][g][n] · Σ_l x_scale[r, l][s of g] · Σ_k x[r, l][k]
///                      · (w[p][n][k] - zero)
struct StepDotArgs {
  /// Limb l of row r at x + (r · limbs + l) · x_stride. Codes are -127 to 127.
  const std::byte* x = nullptr;
  int64_t x_stride = 0;
  int rows = 0;
  int limbs = 1;                   ///< or kLimbs
  const int32_t* x_sum = nullptr;  ///< Σ x over group g, of each limb
  int64_t x_sum_stride = 0;
  const float* x_scale = nullptr;  ///< of super-block s, of each limb; of kLimbs limbs only
  int64_t x_scale_stride = 0;
  const float* minimum_sum = nullptr;  ///< Σ x over group g as floats, of each row
  int64_t minimum_sum_stride = 0;
  int panels = 2;
  const std::byte* w[2] = {};
  PanelSteps steps[2], minimums[2];   ///< minimums: null if there are none
  const int8_t* code_book = nullptr;  ///< 16 codes by number; null: codes are integers
  float factor_unit = 1;              ///< times the factors of codes in a code book
  int zero = 0;
  int group_cols = 0;  ///< 16, 32 or 64, a multiple of the columns that are packed together
  int64_t groups = 0;
  float* sum[2] = {};  ///< [rows][16]
  /// Bytes from a panel's codes, and from its steps, to those of the panel that is read next. The
  /// kernel prefetches a few super-blocks ahead. 0: no panel follows.
  int64_t codes_jump[2] = {}, steps_jump[2] = {};
};

/// Unpacks `blocks` row blocks of codes. `zero` and `exponent` belong to the first
/// `group_blocks` row blocks. Those of the next group lie 16 (or exponent_lanes) further on.
struct UnpackBlocksArgs {
  const std::byte* codes = nullptr;
  int64_t blocks = 0;
  int64_t group_blocks = 0;  ///< 0: all row blocks are one group
  std::byte* to = nullptr;
  const int8_t* zero = nullptr;       ///< [16], subtracted; null: none
  const uint8_t* exponent = nullptr;  ///< [exponent_lanes], 2^(e - 127) multiplies; null: none
  int exponent_lanes = 16;            ///< or 1
  const float* scale = nullptr;       ///< [16], multiplies (Operand::kF32); null: none
};
/// Maximum row blocks of codes that one call unpacks to f32.
inline constexpr int kMaxCodeBlocks = 16;

/// Order of bf16 columns in row blocks and rows. kPlain: ascending. kUnpacked: the order in which
/// codes leave a register, for each eight columns: 0 and 2, 1 and 3, 4 and 6, 5 and 7.
enum class ColumnOrder : uint8_t { kPlain, kUnpacked };

/// Converts a row of `count` activations to operands at `to`. Pads with 0 to a multiple of eight
/// columns where their order is not plain.
struct PackArgs {
  const void* from = nullptr;
  int64_t count = 0;
  std::byte* to = nullptr;
  /// To bf16: the order of the columns, and the nearest bf16 to each remainder; null: none. Value
  /// and remainder hold 16 significant bits together.
  ColumnOrder order = ColumnOrder::kPlain;
  std::byte* low = nullptr;
  /// To integers: columns per segment (for int16 a multiple of 8), Σ of the codes of each segment,
  /// and for floats its scale, which is NaN if a value is infinity or NaN.
  int64_t segment = 0;
  int32_t* sums = nullptr;
  float* scales = nullptr;
  /// Floats to int8: limb p of each value lies at to + p · limb_stride, its sums and scales at p ·
  /// segments:  x ≈ Σ_p scales[p] · code[p].
  int64_t segments = 0;
  int64_t limb_stride = 0;
  /// Successive segments that share a scale; then limb p has its scales at p · (segments /
  /// scale_segments, rounded up).
  int64_t scale_segments = 1;
};

#define DOT(x, w, rows, isa, instruction) void dot_x_##x##_w_##w##_r##rows##_##isa(const DotArgs&);
#define UNPACK(from, to, isa) void unpack_##from##_to_##to##_##isa(const UnpackBlocksArgs&);
#define PACK(from, to, isa) void pack_##from##_to_##to##_##isa(const PackArgs&);
#define STEPS(w, scales, rows, isa, instruction) \
  void dot_steps_##w##_##scales##_r##rows##_##isa(const StepDotArgs&);
#include "kernels/cpu/ukernels/ukernels.inc"
#undef DOT
#undef STEPS
#undef UNPACK
#undef PACK

#if defined(__x86_64__)
/// Called before and after a run on each thread, and between other work about every 100 ns: the AMX
/// unit powers down after 150 ns without a product, and takes 0.25 µs, later 3 µs, to wake up.
void begin_amx();
void end_amx();
void keep_amx_awake();
/// Configures tiles 0 to 3 as sums (half · 2 + panel, or half · 2 + byte), 4 and 5 as activations
/// of each half, 6 and 7 as weights. The halves have `first` and `second` rows: a product's time
/// grows with its rows. `depth`: row blocks per product, 16 or 8.
void configure_tiles(int first, int second, int depth);
#endif

}  // namespace moracle::cpu
