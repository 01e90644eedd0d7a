// How kernels multiply by lines of layout vnni16. This header holds plain structs only, since files
// built for one instruction set include it.
#pragma once

#include <cstdint>

namespace moracle::cpu {

/// Element type of lines and activations. 4 bytes of both make one product sum.
enum class LineArithmetic : uint8_t {
  kInt8,   ///< four int8, sums in i32
  kBf16,   ///< two bf16, sums in f32
  kF32,    ///< one f32
  kInt16,  ///< two int16, sums in i32: floats as steps of the largest of a unit
};

/// How a kernel multiplies by lines.
struct LineForm {
  LineArithmetic arithmetic = LineArithmetic::kF32;
  bool by_codes = false;   ///< multiply by the stored codes (CodeKernels), not by decoded lines
  bool in_parts = false;   ///< floats as kFloatParts rows of int8 (LineArithmetic::kInt8)
  bool two_parts = false;  ///< floats in two bf16 parts (LineArithmetic::kBf16)
};

/// The instructions of a set of kernels.
enum class LineIsa : uint8_t { kAvx2, kAvxVnni, kAvx512, kAvx512Bf16, kAmx };

}  // namespace moracle::cpu
