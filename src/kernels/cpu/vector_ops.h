// Everything in a token's path on the CPU beside the GEMMs, on rows of floats. One source
// (vector_ops.inc) is compiled once per instruction set; vector_ops() picks at run time.
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
};

extern const VectorOps kPortableVectorOps;
#if defined(__x86_64__)
extern const VectorOps kAvx2VectorOps;    ///< needs AVX2 and FMA
extern const VectorOps kAvx512VectorOps;  ///< needs AVX-512 F, BW, VL and DQ
#endif

/// The best that this CPU can run.
const VectorOps& vector_ops();

}  // namespace moracle::cpu
