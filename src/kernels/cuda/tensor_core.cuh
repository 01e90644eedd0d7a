// Tensor-core products of bf16, and the loads and copies that feed them.
#pragma once

#include "base/scalar.h"
#include "kernels/cuda/block.cuh"
#include "moracle/quant.h"

namespace moracle::cuda {

/// c += a · b: [16, 16] · [16, 8]. Lane 4 g + k of the warp holds rows g and g + 8 of a and c, and
/// column g of b. It holds the pairs that start at columns 2 k and 2 k + 8 of a (rows of b), and at
/// column 2 k of c.
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

__device__ inline uint32_t to_bf16_pair(float low, float high) {
  uint32_t pair = 0;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
  return pair;
}

/// Transposes an [8, 8] matrix of 16-bit numbers. Lane 4 g + k passes the pair 2 k of row g and
/// gets the pair 2 k of column g.
__device__ inline uint32_t transposed(uint32_t pair) {
  uint32_t to = 0;
#if __CUDA_ARCH__ >= 750
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pair));
#endif
  return to;
}

/// Loads four [8, 8] matrices of 16-bit numbers from shared memory. Lane l passes the address of
/// row l % 8 of matrix l / 8.
template <bool kTransposed>
__device__ void load_matrices(uint32_t (&to)[4], const void* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
#if __CUDA_ARCH__ >= 750
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  }
#endif
}

/// Copies 16 bytes to shared memory asynchronously. Writes zeros if `there` is false.
__device__ inline void copy_ahead(void* to, const void* from, bool there) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
#endif
}
/// Commits all copies since the last call as one group.
__device__ inline void close_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Waits for all but the last `kLeft` groups of this thread's copies.
template <int kLeft>
__device__ void await_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

/// Two e4m3 numbers, in the low half of `two`, as a pair of bf16, exactly.
__device__ inline uint32_t e4m3_pair(uint32_t two) {
#if __CUDA_ARCH__ >= 890
  float low, high;
  asm("{.reg .b16 e, a, b; .reg .b32 halves;\n"
      "cvt.u16.u32 e, %2; cvt.rn.f16x2.e4m3x2 halves, e; mov.b32 {a, b}, halves;\n"
      "cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(low), "=f"(high)
      : "r"(two));
  return to_bf16_pair(low, high);
#else
  return to_bf16_pair(e4m3_to_float(static_cast<uint8_t>(two)),
                      e4m3_to_float(static_cast<uint8_t>(two >> 8)));
#endif
}

/// Bytes of an element of a cache.
constexpr int cache_element(DType cache) {
  return cache == DType::kF32 ? 4 : cache == DType::kF8E4M3 ? 1 : 2;
}

/// Loads eight numbers of a cache as bf16. The conversion is exact where activations are bf16.
template <DType kCache>
__device__ uint4 load_eight(const std::byte* from) {
  if constexpr (kCache == DType::kBF16) {
    return __ldg(reinterpret_cast<const uint4*>(from));
  } else if constexpr (kCache == DType::kF32) {
    const float4 a = __ldg(reinterpret_cast<const float4*>(from)),
                 b = __ldg(reinterpret_cast<const float4*>(from) + 1);
    return {to_bf16_pair(a.x, a.y), to_bf16_pair(a.z, a.w), to_bf16_pair(b.x, b.y),
            to_bf16_pair(b.z, b.w)};
  } else if constexpr (kCache == DType::kF8E4M3) {
    const uint2 bytes = __ldg(reinterpret_cast<const uint2*>(from));
    return {e4m3_pair(bytes.x), e4m3_pair(bytes.x >> 16), e4m3_pair(bytes.y),
            e4m3_pair(bytes.y >> 16)};
  } else {
    const uint4 halves = __ldg(reinterpret_cast<const uint4*>(from));
    const auto pair = [](uint32_t two) {
      return to_bf16_pair(f16_to_float(static_cast<uint16_t>(two)),
                          f16_to_float(static_cast<uint16_t>(two >> 16)));
    };
    return {pair(halves.x), pair(halves.y), pair(halves.z), pair(halves.w)};
  }
}

}  // namespace moracle::cuda
