// How kernels multiply by row blocks of layout vnni16. This header holds plain structs only, since
// files built for one instruction set include it.
#pragma once

#include <cstdint>

namespace moracle::cpu {

/// Element type of row blocks and activations. 4 bytes of both make one product sum.
enum class Operand : uint8_t {
  kInt8,   ///< four int8, sums in i32
  kBf16,   ///< two bf16, sums in f32
  kF32,    ///< one f32
  kInt16,  ///< two int16, sums in i32: floats as steps of the largest of a segment
};

/// Scales that a kernel of codes reads as stored (StepDotArgs).
enum class StoredScales : uint8_t {
  kNone,
  kHalves,  ///< f16
  kSteps,   ///< integers times f16 factors of 256 columns
};

/// How a kernel multiplies by row blocks.
struct DotForm {
  Operand x = Operand::kF32;
  bool by_codes = false;   ///< multiply by codes as stored, not by unpacked row blocks
  bool in_limbs = false;   ///< floats as kLimbs rows of int8 (Operand::kInt8)
  bool two_terms = false;  ///< floats as two bf16 terms (Operand::kBf16)
  StoredScales scales = StoredScales::kNone;
  constexpr bool by_stored_scales() const { return scales != StoredScales::kNone; }
};

/// The instruction sets of a CPU row's micro-kernels.
enum class DotIsa : uint8_t { kPortable, kAvx2, kAvxVnni, kAvx512, kAvx512Bf16, kAmx };

}  // namespace moracle::cpu
