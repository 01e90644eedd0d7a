// Everything in a token's path on the CPU beside the GEMMs, on rows of floats. One source
// (vector_ops_table.h) is compiled once per instruction set; vector_ops() picks at run time.
//
// What a function writes for an element follows from that element's inputs alone, never from its
// place in the row or the row's length: tails go through the same vector arithmetic. Where a
// function claims a rule's bits, it has them on every instruction set; sums and exponentials may
// differ between instruction sets in the last places.
#pragma once

#include <cstdint>

namespace moracle {
struct ActivationSpec;
}

namespace moracle::cpu {

/// ActivationSpec (moracle/checkpoint.h, which has the formulas) without that header, which files
/// with an instruction set of their own must not include.
struct ActivationArgs {
  int function;  ///< Activation's number
  float alpha, beta, limit;
};
ActivationArgs activation_args(const ActivationSpec& spec);

/// One query in attention: what it asks, what it sees, what came of it.
struct AttendRow {
  const float* query;  ///< [head_dim]
  int64_t begin, end;  ///< positions that it sees
  float* out;          ///< [value_dim]: Σ weight · value
  float largest, sum;  ///< of its scores, and of its weights exp(score - largest)
};
/// Positions that one call of `attend` goes over at most: it starts at a multiple of this.
inline constexpr int64_t kAttendStretch = 256;
inline constexpr int kAttendRows = 64;
/// What keys and values are kept as; 16 bits are widened exactly as they are read.
enum class CacheType { kF32, kBF16, kF16 };
/// Rows that share keys and values, over the positions [from, to) of one stretch.
struct AttendArgs {
  AttendRow* rows;
  int num_rows;        ///< up to kAttendRows
  const void* keys;    ///< of position 0; key_stride elements from one to the next
  const void* values;  ///< likewise
  int64_t key_stride, value_stride;
  int64_t head_dim, value_dim;
  int64_t from, to;
  float scale;     ///< multiplies scores
  float* scratch;  ///< kAttendScratch floats
  CacheType cache = CacheType::kF32;
};
inline constexpr int64_t kAttendScratch = kAttendRows * kAttendStretch;

struct VectorOps {
  const char* isa;  ///< "portable", "avx2", "avx512"

  /// out[i] = f(gate[i], up[i]); without a gate in the formula f(up[i]), and `gate` is not read.
  /// x·σ(x) is within 3 units in the last place, x·Φ(x) within 7. `out` may be `gate` or `up`.
  void (*activate)(const ActivationArgs& args, const float* gate, const float* up, int64_t count,
                   float* out);

  /// quantize_int8_token of quant/activation.h, bit for bit: returns the scale.
  float (*quantize_int8)(const float* x, int64_t count, int8_t* codes);
  /// quantize_row of quant/activation.h for fp8 in groups of `group` columns (the whole row where
  /// that is `count`) and for mxfp8 (`e8m0`), bit for bit. scales: one per group.
  void (*quantize_e4m3)(const float* x, int64_t count, int64_t group, bool e8m0, uint8_t* codes,
                        float* scales);
  /// codes[i] = float_to_e4m3(x[i] / scale)
  void (*encode_e4m3)(const float* x, int64_t count, float scale, uint8_t* codes);
  /// out[i] = the number of codes[i] · scale
  void (*decode_e4m3)(const uint8_t* codes, int64_t count, float scale, float* out);
  void (*decode_int8)(const int8_t* codes, int64_t count, float scale, float* out);

  /// The conversions of base/scalar.h, bit for bit.
  void (*to_bf16)(const float* x, int64_t count, uint16_t* out);
  void (*from_bf16)(const uint16_t* x, int64_t count, float* out);
  void (*to_f16)(const float* x, int64_t count, uint16_t* out);
  void (*from_f16)(const uint16_t* x, int64_t count, float* out);

  /// out = Σ_j weights[j] · rows[j], j from 0 up; on top of what `out` holds where `onto`.
  void (*weighted_sum)(const float* const* rows, const float* weights, int64_t num_rows,
                       int64_t count, bool onto, float* out);
  /// y += x
  void (*add)(const float* x, int64_t count, float* y);
  /// out = x · factor; out = x · factor · weight. `out` may be `x`.
  void (*scale)(const float* x, float factor, int64_t count, float* out);
  void (*scale_by)(const float* x, float factor, const float* weight, int64_t count, float* out);
  /// Σ a · b
  float (*dot)(const float* a, const float* b, int64_t count);
  double (*sum_of_squares)(const float* x, int64_t count);
  /// NaN where any is; of nothing -inf.
  float (*largest)(const float* x, int64_t count);

  /// Cosines and sines of position · frequencies[i] (an f32 product of at most 2^20), times factor.
  void (*turns)(float position, const float* frequencies, int64_t count, float factor,
                float* cosines, float* sines);
  /// Pairs (x, y) = (x·c - y·s, y·c + x·s): two runs of `count`, or `count` pairs of neighbours.
  void (*rotate_halves)(float* first, float* second, const float* cosines, const float* sines,
                        int64_t count);
  void (*rotate_neighbours)(float* x, const float* cosines, const float* sines, int64_t count);

  /// Fills largest, sum and out of each row; of one that sees nothing here with -inf, 0 and 0.
  void (*attend)(const AttendArgs& args);
  /// Adds what a row found in one stretch to what it found before, which starts as -inf, 0, 0.
  void (*attend_merge)(const AttendRow& part, int64_t value_dim, AttendRow& whole);
};

extern const VectorOps kPortableVectorOps;
#if defined(__x86_64__)
extern const VectorOps kAvx2VectorOps;    ///< needs AVX2, FMA and F16C
extern const VectorOps kAvx512VectorOps;  ///< needs AVX-512 F, BW, VL and DQ
#endif

/// The best that this CPU can run.
const VectorOps& vector_ops();

}  // namespace moracle::cpu
