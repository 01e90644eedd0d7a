// Measured rates of multiply instructions, and the choices that follow from them.
#pragma once

#include <string>
#include <vector>

#include "moracle/oracle.h"

namespace moracle {

/// The rates of the instructions in `isa`, on one thread. The first call measures all that this CPU
/// has; later calls return the same numbers, so that all plans of a process agree.
std::vector<InstructionRate> measured_rates(Isa isa);

/// The rate of an instruction; 0: unknown.
double rate_of(const CpuInfo& cpu, std::string_view name);

/// bf16 products (vdpbf16ps) or f32 products on a CPU with AVX-512.
struct Bf16Choice {
  bool bf16 = false;
  std::string reason = {};  ///< with the rates; empty: features alone decided
};

/// bf16 pays from this multiple of the f32 rate on. CPUs have 0.5 (Sapphire Rapids), 1 or 2 (Zen 4
/// and 5): the limit lies between these, so that noise of some percent changes no choice.
inline constexpr double kBf16Pays = 1.4;

/// Without rates, CPUs with AMX are taken to multiply vectors in bf16 slowly, others fast.
Bf16Choice choose_bf16(const CpuInfo& cpu);

}  // namespace moracle
