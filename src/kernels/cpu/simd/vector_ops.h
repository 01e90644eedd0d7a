// Row operations on floats beside the GEMMs, for the CPU. One source (vector_ops_table.h) is
// compiled once per instruction set; vector_ops() picks at run time.
//
// The result for an element depends on that element's inputs alone, not on its index in the row or
// the row's length: tails use the same vector arithmetic. A function documented as bit-exact gives
// these bits on every instruction set. Sums and exponentials may differ between instruction sets in
// the last places.
#pragma once

#include <cstdint>

#include "moracle/layer.h"

namespace moracle::cpu {

/// One query row in attention: its input, its range of positions and its result.
struct AttendRow {
  const float* query;  ///< [head_dim]
  int64_t begin, end;  ///< visible positions
  float* out;          ///< [value_dim]: Σ weight · value
  float largest, sum;  ///< largest score, and sum of the weights exp(score - largest)
};
/// Maximum positions per call of `attend`: a KV block, which starts at a multiple of this.
inline constexpr int64_t kKvBlock = 256;
inline constexpr int kAttendRows = 64;
/// Element type of cached keys and values; 8 and 16 bits are widened exactly on load.
enum class CacheType { kF32, kBF16, kF16, kE4M3 };
/// Rows that share keys and values, over the positions [from, to) of one KV block.
struct AttendArgs {
  AttendRow* rows;
  int num_rows;        ///< up to kAttendRows; of attend_bf16, kPackedRows
  const void* keys;    ///< of position 0; positions lie key_stride elements apart
  const void* values;  ///< likewise
  int64_t key_stride, value_stride;
  int64_t head_dim, value_dim;
  int64_t from, to;
  float scale;     ///< multiplies scores
  float* scratch;  ///< kAttendScratch floats
  CacheType cache = CacheType::kF32;
  const float* key_scales = nullptr;  ///< of position 0; only attend_int8 reads them
  const float* value_scales = nullptr;
  /// Of one KV block of selected positions, in place of `keys`, `values` and their strides: the
  /// rows of positions [0, to). Only `attend` reads them.
  const void* const* key_rows = nullptr;
  const void* const* value_rows = nullptr;
  const void* next_keys = nullptr;  ///< keys that are probably read next; they are prefetched
  int64_t next_bytes = 0;
  /// Of attend_bf16: pairs of bf16, aligned to 64 bytes. keys [kKvBlock / kPackedPanel,
  /// head_dim / 2, kPackedPanel]: two columns of a key; values [panels of columns,
  /// kKvBlock / 2, kPackedPanel]: a column of two positions.
  uint32_t* packed_keys = nullptr;
  uint32_t* packed_values = nullptr;
  bool new_queries = true;  ///< false: pack_bf16 packed these rows for another KV block
};
inline constexpr int64_t kAttendScratch = kAttendRows * kKvBlock;
/// Maximum rows per call of `attend_bf16`, which share the packed keys and values.
inline constexpr int kPackedRows = 256;
inline constexpr int64_t kPackedPanel = 64;
constexpr int64_t packed_columns(int64_t value_dim) {
  return (value_dim + kPackedPanel - 1) / kPackedPanel * kPackedPanel;
}
/// Further scratch of attend_bf16, for packed keys, packed values and queries in bf16.
constexpr int64_t bf16_scratch(int64_t head_dim, int64_t value_dim) {
  return kKvBlock / 2 * (head_dim + packed_columns(value_dim)) + kPackedRows / 2 * head_dim + 16;
}
/// Head sizes that attend_bf16 takes.
constexpr bool packs(int64_t head_dim, int64_t value_dim) {
  return head_dim % 32 == 0 && value_dim % 16 == 0;
}
/// Further scratch of attend_int8, for the codes of queries.
constexpr int64_t int8_scratch(int64_t head_dim) {
  return kAttendRows * ((head_dim + 15) / 16 * 16) / 2;
}

/// The scores of one token's index queries with `count` index keys, which are adjacent.
struct IndexScoreArgs {
  const float* queries;  ///< [num_heads, head_dim]
  const float* weights;  ///< [num_heads]; null: one head, whose products are the scores
  int64_t num_heads, head_dim;
  const void* keys;
  CacheType cache;
  int64_t count;
  float scale;
  float* scores;  ///< `count`, rounded up to a multiple of 4
};

/// One token of one head: S ← decay · S, S ← S + k ⊗ strength · (v - Sᵀ k), out = Sᵀ q.
struct DeltaStep {
  enum class Rule : uint8_t {
    kDelta,
    kByChannel,  ///< each row of S has a decay of its own, in `decays`
    kSum,        ///< S ← S + k ⊗ v
  };
  const float *q, *k;   ///< [key_dim]
  const float* v;       ///< [value_dim]
  const float* before;  ///< S [key_dim, value_dim]
  float* after;         ///< may be `before`
  float* out;           ///< [value_dim]
  float decay, strength;
  int64_t key_dim, value_dim;
  Rule rule = Rule::kDelta;
  const float* decays = nullptr;  ///< [key_dim]
};

/// The decays of one head's channels: exp(-rate · log(1 + exp(x))), x = a + dt_bias; if lower_bound
/// is not 0, exp(lower_bound · σ(rate · x)).
struct DeltaDecays {
  const float *a, *dt_bias;  ///< [count]
  float rate, lower_bound;
  int64_t count;
  float* decays;
};

/// Tokens of a chunk, and columns of the state that lie together in DeltaChunk.
inline constexpr int64_t kDeltaChunk = 32, kDeltaStrip = 32;
/// Up to kDeltaChunk tokens of one head: DeltaStep for each of them in order. Rows past the last
/// token may hold any values. key_dim is a multiple of 8, value_dim of kDeltaStrip.
struct DeltaChunk {
  const float *q, *k;             ///< [kDeltaChunk, key_dim]
  const float *q_by_k, *k_by_k;   ///< delta_products of their rows
  const float *decay, *strength;  ///< [kDeltaChunk]
  const float* v;                 ///< [num_tokens, value_dim], rows v_stride apart
  float* out;                     ///< likewise
  float* state;                   ///< S: [value_dim / kDeltaStrip, key_dim, kDeltaStrip]
  int64_t v_stride, out_stride;
  int64_t num_tokens, key_dim, value_dim;
  /// kByChannel: q, k and the products are those of DeltaChannels, and decay is not read. kSum:
  /// k_by_k and strength are not read.
  DeltaStep::Rule rule = DeltaStep::Rule::kDelta;
  const float *kept_keys = nullptr, *kept_state = nullptr;  ///< those of DeltaChannels
};
/// What the channels' decays change in a chunk. a_i are the decays of token i, and products of
/// vectors are by element. key_dim is a multiple of 16.
struct DeltaChannels {
  const float* decays;  ///< [num_tokens, key_dim]
  float *q, *k;         ///< [kDeltaChunk, key_dim]; row i is multiplied by a_0 ⋯ a_i
  float *q_by_k, *k_by_k;  ///< [i · kDeltaChunk + j], j <= i: q_i · (k_j a_{j+1} ⋯ a_i), k_i · …
  float* kept_keys;        ///< [key_dim, kDeltaChunk]: column j is k_j a_{j+1} ⋯ a_last
  float* kept_state;       ///< [key_dim]: a_0 ⋯ a_last
  int64_t num_tokens, key_dim;
};

/// One token of one head of Mamba-2: S ← decay · S + b ⊗ step · x, out = Sᵀ c + skip · x.
struct Mamba2Step {
  const float *b, *c;   ///< [state_dim]
  const float* x;       ///< [head_dim]
  const float* before;  ///< S [state_dim, head_dim]
  float* after;         ///< may be `before`
  float* out;           ///< [head_dim]
  float decay, step, skip;
  int64_t state_dim, head_dim;
  /// Store S past the caches. `after` is aligned to 64 bytes, and head_dim a multiple of 16.
  bool streams = false;
};

/// Up to kDeltaChunk tokens of one head: Mamba2Step for each of them in order. Rows past the last
/// token may hold any values. state_dim is a multiple of 8, head_dim of kDeltaStrip.
struct Mamba2Chunk {
  const float *b, *c;         ///< [kDeltaChunk, state_dim]
  const float* c_by_b;        ///< delta_products of their rows
  const float *decay, *step;  ///< [kDeltaChunk]
  const float* x;             ///< [num_tokens, head_dim], rows x_stride apart
  float* out;                 ///< likewise
  float* state;               ///< S: [head_dim / kDeltaStrip, state_dim, kDeltaStrip]
  float skip;
  int64_t x_stride, out_stride;
  int64_t num_tokens, state_dim, head_dim;
};

/// Epilogue of one panel's sums:  v = (sum · x_scale[r]) · w_scale[n] + bias[n].  The result is
/// stored, or added to a row of `to` with the row's weight. Null factors and biases are left out.
struct StoreArgs {
  const float* sum = nullptr;  ///< [rows][16]
  int rows = 0;
  const float* x_scale = nullptr;
  int64_t x_scale_stride = 0;
  const float* w_scale = nullptr;
  const float* bias = nullptr;
  float* to = nullptr;  ///< row r at to + (to_row ? to_row[r] : r) · to_stride
  int64_t to_stride = 0;
  int columns = 16;  ///< stored columns
  const int32_t* to_row = nullptr;
  bool add = false;
  const float* weight = nullptr;  ///< [rows]; null: 1
};

/// Sums of rows of one panel before the epilogue, and the minimums of the panel's groups:
///   sum[r][n] ← sum[r][n] · scale[n] - Σ_g x_sum[r][g] · minimum[g][n]
struct MinimumArgs {
  float* sum = nullptr;  ///< [rows][16]
  int rows = 0;
  int64_t groups = 0;
  const float* scale = nullptr;    ///< [16]; null: 1
  const float* minimum = nullptr;  ///< [groups][16]
  /// Σ x over the columns of each group; of row r at x_sum[r · x_sum_stride].
  const float* x_sum = nullptr;
  int64_t x_sum_stride = 0;
};

/// Integers of 8 bits to floats, a panel's groups one after another:
///   to[g][n] = steps[g][n] · factor[n] · unit + times · plus[g][n]
struct StepArgs {
  const int8_t* steps = nullptr;     ///< [groups][16]
  const uint16_t* factor = nullptr;  ///< [16] f16
  float unit = 1;                    ///< a power of two
  int64_t groups = 0;
  const float* plus = nullptr;  ///< [groups][16]; null: none
  float times = 0;
  float* to = nullptr;  ///< [groups][16]
};

/// Numbers of a code set in layout vnni16 to row blocks of int8 codes. `units` of them follow one
/// another (vnni16::unit_of).
struct UnpackArgs {
  const std::byte* from = nullptr;
  int64_t units = 0;
  CodeSet set = CodeSet::kSigned6;
  const int8_t* code_book = nullptr;  ///< 16 codes by number; null: codes are integers
  std::byte* to = nullptr;
};

struct VectorOps {
  const char* isa;  ///< "portable", "avx2", "avx512"

  /// out[i] = f(gate[i], up[i]). Formulas without a gate compute f(up[i]) and do not read `gate`.
  /// x·σ(x) is within 3 units in the last place, x·Φ(x) within 7. `out` may be `gate` or `up`.
  void (*activate)(const ActivationSpec& spec, const float* gate, const float* up, int64_t count,
                   float* out);

  /// The epilogue of a GEMM.
  void (*store_rows)(const StoreArgs& args);
  void (*subtract_minimums)(const MinimumArgs& args);
  void (*scale_steps)(const StepArgs& args);
  /// Finite f16 scales [groups][16] to floats.
  void (*widen_scales)(const uint16_t* scales, int64_t groups, float* to);
  /// 2^(e - 127), or half of it, for `count` exponents (a multiple of 16). Gives 0 below the normal
  /// numbers, where a product underflows, and NaN for 255.
  void (*powers_of_two)(const uint8_t* exponents, int64_t count, bool half, float* to);
  void (*unpack_codes)(const UnpackArgs& args);

  /// quantize_int8_token of quant/activation.h, bit for bit. Returns the scale.
  float (*quantize_int8)(const float* x, int64_t count, int8_t* codes);
  /// quantize_row of quant/activation.h, bit for bit, for fp8 in groups of `group` columns
  /// (`count`: the whole row) and for mxfp8 (`e8m0`). scales: one per group.
  void (*quantize_e4m3)(const float* x, int64_t count, int64_t group, bool e8m0, uint8_t* codes,
                        float* scales);
  /// codes[i] = float_to_e4m3(x[i] / scale)
  void (*encode_e4m3)(const float* x, int64_t count, float scale, uint8_t* codes);
  /// out[i] = number(codes[i]) · scale
  void (*dequantize_e4m3)(const uint8_t* codes, int64_t count, float scale, float* out);
  void (*dequantize_int8)(const int8_t* codes, int64_t count, float scale, float* out);

  /// The conversions of base/scalar.h, bit for bit.
  void (*to_bf16)(const float* x, int64_t count, uint16_t* out);
  void (*from_bf16)(const uint16_t* x, int64_t count, float* out);
  void (*to_f16)(const float* x, int64_t count, uint16_t* out);
  void (*from_f16)(const uint16_t* x, int64_t count, float* out);

  /// out = Σ_j weights[j] · rows[j], j ascending; added to `out` if `onto`.
  void (*weighted_sum)(const float* const* rows, const float* weights, int64_t num_rows,
                       int64_t count, bool onto, float* out);
  /// y += x
  void (*add)(const float* x, int64_t count, float* y);
  /// out = x · factor; out = x · factor · weight. `out` may be `x`.
  void (*scale)(const float* x, float factor, int64_t count, float* out);
  void (*scale_by)(const float* x, float factor, const float* weight, int64_t count, float* out);
  /// Σ a · b
  float (*dot)(const float* a, const float* b, int64_t count);
  /// sums[g] = Σ x over group g, for groups of `group` columns; the last one may be shorter.
  void (*group_sums)(const float* x, int64_t count, int64_t group, float* sums);
  void (*code_sums)(const int8_t* codes, int64_t count, int64_t group, int32_t* sums);
  double (*sum_of_squares)(const float* x, int64_t count);
  /// The largest element: NaN if any element is NaN, -inf if count is 0.
  float (*largest)(const float* x, int64_t count);

  /// Cosines and sines of position · frequencies[i] (an f32 product of at most 2^20), times factor.
  void (*cos_sin)(float position, const float* frequencies, int64_t count, float factor,
                  float* cosines, float* sines);
  /// Pairs (x, y) = (x·c - y·s, y·c + x·s): two runs of `count`, or `count` pairs of neighbours.
  void (*rotate_halves)(float* first, float* second, const float* cosines, const float* sines,
                        int64_t count);
  void (*rotate_neighbours)(float* x, const float* cosines, const float* sines, int64_t count);

  /// Fills largest, sum and out of each row. A row that sees no position here gets -inf, 0 and 0.
  void (*attend)(const AttendArgs& args);
  /// attend over int8 codes in the order of cached_codes.h, with scales. The strides are the padded
  /// columns, and `from` is a multiple of kKvBlock. `scratch` has int8_scratch(head_dim) floats
  /// more.
  void (*attend_int8)(const AttendArgs& args);
  /// Merges a row's partial result of one KV block into `whole`, which starts as -inf, 0, 0.
  void (*attend_merge)(const AttendRow& partial, int64_t value_dim, AttendRow& whole);

  /// scores[j] = scale · Σ_h weights[h] · max(0, q_h · k_j)
  void (*index_scores)(const IndexScoreArgs& args);

  /// x[i] *= σ(by[i])
  void (*gate_sigmoid)(const float* by, int64_t count, float* x);
  /// out[i] = bias[i] + Σ_j weight[j · weight_stride + i] · rows[j][i], then x·σ(x) if `with_silu`.
  /// A null bias is 0.
  void (*convolve)(const float* const* rows, const float* weight, int64_t weight_stride,
                   int64_t taps, int64_t count, const float* bias, bool with_silu, float* out);
  void (*delta_step)(const DeltaStep& step);
  /// out[i · kDeltaChunk + j] = Σ_d a[i · count + d] · b[d · kDeltaChunk + j], j <= i < num_rows;
  /// out's other elements up to a multiple of 8 rows may be written. `a` has these rows, too.
  void (*delta_products)(const float* a, const float* b, int64_t count, int64_t num_rows,
                         float* out);
  void (*delta_chunk)(const DeltaChunk& chunk);
  void (*mamba2_step)(const Mamba2Step& step);
  void (*mamba2_chunk)(const Mamba2Chunk& chunk);
  void (*delta_decays)(const DeltaDecays& args);
  void (*delta_channels)(const DeltaChannels& args);
  /// out = x·σ(x)
  void (*silu_of)(const float* x, int64_t count, float* out);

  /// Packs for attend_bf16 the keys and values of the positions that any row sees. Requires
  /// packs(head_dim, value_dim). False: a value is not finite, and 0 times that value would be NaN.
  /// pack_bf16 and attend_bf16 are null without bf16 products.
  bool (*pack_bf16)(const AttendArgs& args) = nullptr;
  /// As attend, with bf16 products of packed keys and values. `from` is a multiple of
  /// kKvBlock. Any order of rows gives the same bits.
  void (*attend_bf16)(const AttendArgs& args) = nullptr;
};

extern const VectorOps kPortableVectorOps;
#if defined(__x86_64__)
extern const VectorOps kAvx2VectorOps;    ///< needs AVX2, FMA and F16C
extern const VectorOps kAvx512VectorOps;  ///< needs AVX-512 F, BW, VL and DQ
// VectorOps::attend_int8 with products of VNNI, which are the same integers.
void attend_int8_avx_vnni(const AttendArgs& args);
void attend_int8_avx512_vnni(const AttendArgs& args);
// VectorOps::pack_bf16 and attend_bf16.
bool pack_bf16_avx512_bf16(const AttendArgs& args);
void attend_bf16_avx512_bf16(const AttendArgs& args);
#endif

/// The table of the best instruction set that this CPU supports.
const VectorOps& vector_ops();

}  // namespace moracle::cpu
