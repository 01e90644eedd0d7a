// Arithmetic that C++ does not reach in one instruction.
#pragma once

#include <cstdint>

namespace moracle::cuda {

/// (x & mask) ^ flip.
template <uint32_t kMask, uint32_t kFlip>
__device__ __forceinline__ uint32_t and_xor(uint32_t x) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(x), "n"(kMask), "n"(kFlip));
  return y;
}

/// The larger of the low halves, and of the high halves.
__device__ inline uint32_t max_u16x2(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 900
  uint32_t largest;
  asm("max.u16x2 %0, %1, %2;" : "=r"(largest) : "r"(a), "r"(b));
  return largest;
#else
  return max(a & 0xffffu, b & 0xffffu) | max(a & 0xffff0000u, b & 0xffff0000u);
#endif
}

/// The smaller ones. From compute capability 9.0 on.
__device__ inline uint32_t min_u16x2(uint32_t a, uint32_t b) {
  uint32_t smallest = 0;
#if __CUDA_ARCH__ >= 900
  asm("min.u16x2 %0, %1, %2;" : "=r"(smallest) : "r"(a), "r"(b));
#endif
  return smallest;
}

/// The largest value of a warp's lanes: one instruction from compute capability 8.0 on, instead of
/// five shuffles and comparisons.
__device__ inline uint32_t warp_max(uint32_t value) {
  constexpr uint32_t kAll = 0xffffffffu;
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kAll, value);
#else
  for (int step = 16; step > 0; step /= 2) value = max(value, __shfl_xor_sync(kAll, value, step));
  return value;
#endif
}

/// 2^x, with denormal results flushed to zero.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// sum += a · b, exactly once: for loops that measure the instruction.
__device__ inline void fma_volatile(float& sum, float a, float b) {
  asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(sum) : "f"(a), "f"(b));
}

}  // namespace moracle::cuda
