// The kernel tables that this CPU runs.
#pragma once

#include "moracle/oracle.h"

namespace moracle::cpu {

/// Evaluated when a test runs, not when it is listed: a mask may remove instruction sets.
inline bool has(Isa isa) {
  return missing(isa, Machine::here().cpu.isa) == Isa::kNone;
}

}  // namespace moracle::cpu
