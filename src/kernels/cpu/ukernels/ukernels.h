// The micro-kernels of the CPU as one table, and the instruction sets whose micro-kernels a backend
// runs.
#pragma once

#include <optional>

#include "kernels/cpu/ukernels/args.h"
#include "moracle/base.h"
#include "moracle/oracle.h"
#include "moracle/quant.h"

namespace moracle::cpu {

enum class UkernelIsa : uint8_t {
  kPortable = 1,
  kAvx2 = 2,
  kAvxVnni = 4,
  kAvx512Vnni = 8,
  kAvx512Bf16 = 16,
  kAmx = 32,
};

/// Multiplies rows of `x` by row blocks of `w`: stored codes, or operands of x's type.
struct DotKernel {
  Operand x;
  DType w;
  int rows;  ///< maximum per call
  UkernelIsa isa;
  const char* instruction;  ///< as in the measured limits
  void (*fn)(const DotArgs&);
};
/// Multiplies rows of int8 by codes with scales of type `scales`, kI8 or kF16.
struct StepKernel {
  DType dtype;
  CodeSet codes;
  DType scales;
  int rows;  ///< maximum of an expert
  UkernelIsa isa;
  const char* instruction;
  void (*fn)(const StepDotArgs&);
};
struct UnpackKernel {
  DType from;
  Operand to;
  UkernelIsa isa;
  void (*fn)(const UnpackBlocksArgs&);
};
struct PackKernel {
  DType from;
  Operand to;
  UkernelIsa isa;
  void (*fn)(const PackArgs&);
};

/// The micro-kernels of one backend, and how it runs them.
struct UkernelSet {
  uint8_t isas;
  Isa needs;
  ColumnOrder order = ColumnOrder::kPlain;  ///< of unpacked bf16; activation rows follow it
  void (*begin)() = nullptr;                ///< see begin_amx; null: not needed
  void (*end)() = nullptr;
  void (*keep_awake)() = nullptr;
  /// Maximum rows of an expert that kernels of codes multiply, although unpacking the weights is
  /// faster for more rows.
  int skinny_rows = kSkinnyRows;
  /// Where one call takes all rows, it prefetches this many cache lines ahead, and continues with
  /// the next panels at the end of its own. 0: it prefetches the next panels, as for more rows.
  int prefetch_distance = 0;
  int prefetch_distance_16 = 64;      ///< the same for weights of 16 bits
  int prefetch_rows = kMaxBlockRows;  ///< maximum rows of a call that prefetches ahead of itself
  /// Few rows of floats are multiplied by 4-bit codes in kLimbs limbs of int8.
  bool floats_in_limbs = false;

  /// The best kernel of these instruction sets; null: none.
  const DotKernel* dot(Operand x, DType w) const;
  /// For experts with up to `rows` rows.
  const StepKernel* steps(const QuantKey& key, int rows) const;
  const UnpackKernel* unpack(DType from, Operand to) const;
  const PackKernel* pack(DType from, Operand to) const;
};

/// The set of a plan. Builds for other architectures have the portable one alone.
const UkernelSet& ukernels(DotIsa isa);

/// The stored type whose row blocks are operands of `x` without unpacking; none for int16.
std::optional<DType> operand_dtype(Operand x);

}  // namespace moracle::cpu
