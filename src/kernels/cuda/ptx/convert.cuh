// Conversions of pairs. The first number of a pair is in its low half.
#pragma once

#include "base/scalar.h"

namespace moracle::cuda {

/// From compute capability 8.0 on.
__device__ inline uint32_t to_bf16_pair(float low, float high) {
  uint32_t pair = 0;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
  return pair;
}

/// The values are not NaN.
__device__ inline uint32_t to_e4m3_pair(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
#else
  return float_to_e4m3(low) | uint32_t{float_to_e4m3(high)} << 8;
#endif
}

/// Rounds to bf16.
__device__ inline uint32_t f16_to_bf16_pair(uint32_t halves) {
  float low, high;
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(low), "=f"(high)
      : "r"(halves));
  return to_bf16_pair(low, high);
}

/// Exact. The pair is in the low half of `codes`; the high half is ignored.
__device__ inline uint32_t e4m3_to_bf16_pair(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("{.reg .b16 e; cvt.u16.u32 e, %1; cvt.rn.f16x2.e4m3x2 %0, e;}" : "=r"(halves) : "r"(codes));
  return f16_to_bf16_pair(halves);
#else
  return to_bf16_pair(e4m3_to_float(static_cast<uint8_t>(codes)),
                      e4m3_to_float(static_cast<uint8_t>(codes >> 8)));
#endif
}

}  // namespace moracle::cuda
