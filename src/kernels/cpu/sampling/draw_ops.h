// Weights of draws from many logits, for the CPU. One source (draw_ops_table.h) is compiled once
// per instruction set; draw_ops() picks at run time. All give the same bits, so that a seed draws
// the same tokens on every CPU: cmake/Kernels.cmake compiles these files without contraction of
// products and sums, and sums are integers, which no order changes.
#pragma once

#include <cstdint>

namespace moracle::cpu {

/// Sums count weights in units of 2^-42: up to 2^22 weights of at most 1.
inline constexpr int kWeightBits = 42;

struct DrawOps {
  const char* isa;  ///< "portable", "avx2", "avx512"

  /// weights[i] = 2^((logits[i] - most) · scale), within a unit in the last place of that power;
  /// 0 below 2^-42. `most` is the largest logit. Returns the sum.
  uint64_t (*weights)(const float* logits, int64_t count, float most, float scale, float* weights);
  /// Sets the weights outside [least, below) to 0, and returns the sum of the others.
  uint64_t (*keep)(float* weights, int64_t count, float least, float below);
  /// Floats above 0 have the order of their bits. sums[(bits - first) >> shift] += weight, with
  /// sums[0] for bits below `first`.
  void (*add_by_bits)(const float* weights, int64_t count, uint32_t first, int shift,
                      uint64_t* sums);
  /// Writes the bits of the weights in [least, below), and returns their number.
  int64_t (*find)(const float* weights, int64_t count, float least, float below, uint32_t* bits);
};

extern const DrawOps kPortableDrawOps;
#if defined(__x86_64__)
extern const DrawOps kAvx2DrawOps;    ///< needs AVX2, FMA and F16C
extern const DrawOps kAvx512DrawOps;  ///< needs AVX-512 F, BW, VL and DQ
#endif

/// The table of the best instruction set that this CPU supports.
const DrawOps& draw_ops();

}  // namespace moracle::cpu
