// The innermost loops over layout vnni16: activation rows times lines of weights, and codes decoded
// to lines of operands. Each instruction set has one file; cpu.cc, cpu_avx2.cc, cpu_avx512.cc and
// cpu_amx.cc choose. This header holds plain structs only, since files built for one instruction
// set include it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moracle::cpu {

/// Rows of weights (outputs) in a line, and bytes per line.
inline constexpr int kLineRows = 16;
inline constexpr int kLineBytes = 64;
/// Maximum activation rows in one call, and the limit for kernels of few rows.
inline constexpr int kMaxBlockRows = 32;
inline constexpr int kFewRows = 4;

/// Floats in parts of int8: 127 · 254² steps from 0 to the largest of a unit, which are more than
/// half of f32's. Products with 4-bit codes need fewer instructions in parts than in f32.
inline constexpr int kFloatParts = 3;
inline constexpr int kPartRadix = 254;

/// Floats in int16: so many steps from 0 to the largest of a unit. They have half the products of
/// f32 in each instruction, and requests may allow them.
inline constexpr int kInt16Steps = 32767;

/// Element type of lines and activations. 4 bytes of both make one product sum.
enum class LineArithmetic : uint8_t {
  kInt8,   ///< four int8, sums in i32
  kBf16,   ///< two bf16, sums in f32
  kF32,    ///< one f32
  kInt16,  ///< two int16, sums in i32: floats as steps of the largest of a unit
};

/// A block of activation rows times one or two panels, over units of columns. The columns of a unit
/// share their scales:
///
///   sum[p][16 r + n] += Σ_u x_scale[r][u] · w_scale[p][u][n] · (Σ_k x[r][k] · w[p][n][k]
///                                                               - zero[p][u][n] · x_sum[r][u])
///
/// Null scales count as 1. Integer sums are exact until they are scaled.
struct LineBlock {
  /// Row r at x + r · x_stride: 4 bytes for each line. int8 codes are -127 to 127.
  const std::byte* x = nullptr;
  int64_t x_stride = 0;  ///< bytes; memory for kMaxBlockRows rows is readable
  /// LineArithmetic::kBf16: each value is the sum of two parts, and the second part lies `x_rest`
  /// bytes behind the first; 0: one part.
  int64_t x_rest = 0;
  int rows = 0;       ///< at most kMaxBlockRows
  int most_rows = 0;  ///< maximum over all blocks that meet the same panels
  int panels = 2;
  const std::byte* lines[2] = {};  ///< units · unit_lines, on 64-byte boundaries
  int units = 1;
  int64_t unit_lines = 0;          ///< a multiple of 8 for AMX tiles
  float* sum[2] = {};              ///< [rows][16]
  bool overwrite = false;          ///< start the sums at 0; do not read the old values
  const float* x_scale = nullptr;  ///< of row r at x_scale[r · x_scale_stride + u · x_scale_unit]
  int64_t x_scale_stride = 0;
  int64_t x_scale_unit = 0;
  const float* w_scale[2] = {};  ///< [units][16]
  const int8_t* w_zero[2] = {};  ///< [units][16], where lines hold integers; null: none
  /// LineArithmetic::kInt8 and kInt16 only.
  const int32_t* x_sum = nullptr;  ///< Σ x over unit u, of row r at x_sum[r · x_sum_stride + u]
  int64_t x_sum_stride = 0;
  /// What is read next, to prefetch. The kernel prefetches one cache line for each panel after
  /// every `prefetch_every` lines (1, 2, 4, 8 or 16) that it multiplies; 0: no prefetch. Cache
  /// lines from number `prefetch_turn` on lie `prefetch_jump` bytes further.
  const std::byte* prefetch[2] = {};
  int prefetch_every = 0;
  int64_t prefetch_turn = INT64_MAX;
  int64_t prefetch_jump[2] = {};
};

/// Decodes `lines` source lines of 64 bytes. `zero` and `exponent` belong to the first
/// `group_lines` lines. Those of the next group lie 16 (or exponent_lanes) further on.
struct LineCodes {
  const std::byte* codes = nullptr;
  int64_t lines = 0;
  int64_t group_lines = 0;  ///< 0: all lines are one group
  std::byte* to = nullptr;
  const int8_t* zero = nullptr;       ///< [16], subtracted; null: none
  const uint8_t* exponent = nullptr;  ///< [exponent_lanes], 2^(e - 127) multiplies; null: none
  int exponent_lanes = 16;            ///< or 1
  const float* scale = nullptr;       ///< [16], multiplies (LineArithmetic::kF32); null: none
};
/// Maximum lines of codes that one call decodes to f32.
inline constexpr int kMaxCodeLines = 16;

struct LineDecoders;
struct RowConverters;

/// Kernels that multiply up to LineKernels::code_block rows by lines of codes, without decoded
/// lines. unit_lines and prefetch_every count lines of codes, and zero points are subtracted from
/// codes. Integer sums count fp4 twice. Kernels of 16-bit codes take any number of rows, in one
/// order of summation. Null: not supported.
struct CodeKernels {
  void (*int8_by_i4)(const LineBlock&);
  void (*int8_by_e2m1)(const LineBlock&);
  void (*f32_by_i4)(const LineBlock&);
  void (*f32_by_i8)(const LineBlock&);
  void (*f32_by_e4m3)(const LineBlock&);
  void (*f32_by_e2m1)(const LineBlock&);
  void (*f32_by_bf16)(const LineBlock&) = nullptr;
  void (*f32_by_f16)(const LineBlock&) = nullptr;
  /// Any number of rows. The columns of each eight have the order 0, 2, 1, 3, 4, 6, 5, 7.
  void (*int16_by_i4)(const LineBlock&) = nullptr;
  void (*int16_by_i8)(const LineBlock&) = nullptr;
  void (*int16_by_e2m1)(const LineBlock&) = nullptr;
};

struct LineKernels {
  /// By LineArithmetic: the instruction's name in the measured limits. Null: not supported.
  const char* instructions[4] = {};
  /// The same for `codes`; all null: the same names.
  const char* code_instructions[4] = {};
  const LineDecoders* decoders = nullptr;
  const RowConverters* rows = nullptr;
  const CodeKernels* codes = nullptr;
  void (*begin)() = nullptr;  ///< begin, end: on each thread before and after a run; null: none
  void (*end)() = nullptr;
  /// Called between other work, about every 100 ns; null: not needed. The AMX unit goes to sleep
  /// after 150 ns without a product and takes 0.25 µs, later 3 µs, to wake up.
  void (*keep_awake)() = nullptr;
  int row_block = 8;  ///< rows per call that keep the units busy
  /// Rows per call of `codes`, and maximum rows of an expert that `codes` multiplies.
  int code_block = kFewRows;
  int few_rows = kFewRows;
  /// Where one block takes all rows, it prefetches this many cache lines ahead of itself, and turns
  /// to the next panels at the end of its own; 0: it prefetches the next panels, as for more rows.
  int lines_ahead = 0;
  int lines_ahead_16 = 0;          ///< the same for weights of 16 bits
  int rows_ahead = kMaxBlockRows;  ///< maximum rows of a block that prefetches ahead of itself
  /// `codes` multiplies any number of rows by codes in int8 or bf16, faster than lines.
  bool codes_for_all_rows = false;
  /// Few rows of floats are multiplied by 4-bit codes in kFloatParts parts of int8.
  bool floats_in_parts = false;
  void (*int8)(const LineBlock&) = nullptr;
  void (*bf16)(const LineBlock&) = nullptr;
  void (*f32)(const LineBlock&) = nullptr;
  /// As CodeKernels, for rows of bf16 in decoded order, without zero points. Null: not supported.
  void (*bf16_by_i4)(const LineBlock&) = nullptr;
  void (*bf16_by_e2m1)(const LineBlock&) = nullptr;
  void (*bf16_by_e4m3)(const LineBlock&) = nullptr;
};

/// Order of bf16 columns in lines and rows. kPlain: ascending. kDecoded: the order in which codes
/// leave a register, for each eight columns: 0 and 2, 1 and 3, 4 and 6, 5 and 7.
enum class ColumnOrder : uint8_t { kPlain, kDecoded };

/// Decode codes to lines of int8, bf16 or f32. Only products with `scale` are rounded. Null: not
/// supported.
struct LineDecoders {
  ColumnOrder order;  ///< of decoded bf16; activation rows follow it
  void (*i4_to_int8)(const LineCodes&) = nullptr;
  void (*e2m1_to_int8)(const LineCodes&) = nullptr;  ///< twice the value
  void (*i4_to_bf16)(const LineCodes&) = nullptr;
  void (*i8_to_bf16)(const LineCodes&) = nullptr;
  void (*e4m3_to_bf16)(const LineCodes&) = nullptr;
  void (*e2m1_to_bf16)(const LineCodes&) = nullptr;
  void (*i4_to_f32)(const LineCodes&);
  void (*i8_to_f32)(const LineCodes&);
  void (*e4m3_to_f32)(const LineCodes&);
  void (*e2m1_to_f32)(const LineCodes&);
  /// 2^(e - 127), or half of it, for `count` exponents (a multiple of 16). Gives 0 below the normal
  /// numbers, where a product underflows, and NaN for 255.
  void (*powers_of_two)(const uint8_t* exponents, int64_t count, bool half, float* to);
};

/// Convert activation rows of f32 or codes to rows of lines' elements. Rows in decoded order are
/// padded with 0 to a multiple of eight columns. Null: not supported.
struct RowConverters {
  /// The nearest bf16, and the nearest bf16 to the remainder: 16 significant bits together. Writes
  /// only the first part where `rest` is null.
  void (*f32_to_bf16)(const float* from, int64_t count, ColumnOrder order, std::byte* to,
                      std::byte* rest) = nullptr;
  void (*e4m3_to_bf16)(const uint8_t* from, int64_t count, ColumnOrder order,
                       std::byte* to) = nullptr;
  void (*int8_to_bf16)(const int8_t* from, int64_t count, ColumnOrder order,
                       std::byte* to) = nullptr;
  void (*e4m3_to_f32)(const uint8_t* from, int64_t count, std::byte* to) = nullptr;
  void (*int8_to_f32)(const int8_t* from, int64_t count, std::byte* to) = nullptr;
  /// Part p of each value at `to` + p · stride, and for each run of `run` values Σ of the codes at
  /// sums[p · num_runs] and the scale at scales[p · num_runs]:  x ≈ Σ_p scales[p] · code[p].  The
  /// scales of a run with an infinity or NaN are NaN.
  void (*f32_to_parts)(const float* from, int64_t count, int64_t run, int64_t num_runs,
                       std::byte* to, int64_t stride, int32_t* sums, float* scales) = nullptr;
  /// Copies, and writes Σ of each run of `run` codes.
  void (*copy_int8)(const int8_t* from, int64_t count, int64_t run, std::byte* to, int32_t* sums);
  /// Codes of CodeKernels' int16 at `to`, Σ of the codes of each run of `run` values at `sums`, and
  /// their scale at `scales`:  x ≈ scale · code.  `run` is a multiple of 8. Pads with 0 to a
  /// multiple of eight columns. The scale of a run with an infinity or NaN is NaN.
  void (*f32_to_int16)(const float* from, int64_t count, int64_t run, std::byte* to, int32_t* sums,
                       float* scales) = nullptr;
};

extern const LineKernels kPortableLines;  ///< any CPU: int8, f32
#if defined(__x86_64__)
extern const LineDecoders kAvx2Decoders;
extern const RowConverters kAvx2Rows;
extern const CodeKernels kAvx2Codes;
extern const CodeKernels kAvxVnniCodes;
extern const LineKernels kAvx2Lines;     ///< AVX2 with FMA and F16C: int8, f32
extern const LineKernels kAvxVnniLines;  ///< and AVX-VNNI: int8, f32
extern const LineDecoders kAvx512Decoders;
extern const RowConverters kAvx512Rows;
extern const CodeKernels kAvx512Codes;
extern const LineKernels kAvx512Lines;      ///< AVX-512 with VNNI: int8, f32
extern const LineKernels kAvx512Bf16Lines;  ///< the same and bf16
extern const LineKernels kAmxLines;         ///< int8, bf16
#endif

}  // namespace moracle::cpu
