#pragma once

#include "moracle/oracle.h"

namespace moracle {

/// cuBLASLt from CUDA 12.9 on, which multiplies fp8 in blocks.
inline constexpr Library kCublasLtBlocks = static_cast<Library>(1u << 1);

}  // namespace moracle
