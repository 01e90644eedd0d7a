// Which tables of kernels this CPU runs.
#pragma once

#include "moracle/oracle.h"

namespace moracle::cpu {

/// Asked when a test runs, not when it is listed: a mask may take instruction sets away.
inline bool has(Isa isa) {
  return missing(isa, Machine::here().cpu.isa) == Isa::kNone;
}

}  // namespace moracle::cpu
