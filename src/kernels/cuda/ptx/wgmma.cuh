// wgmma: a warpgroup's product of [64, k] in registers · [k, kN] in shared memory; k is 16 for
// 16-bit and 32 for 8-bit operands. And the registers of a warpgroup. For compute capability 9.0
// only.
#pragma once

#include <cstdint>
#include <type_traits>

namespace moracle::cuda {

/// Element types of the operands.
enum class WgmmaTypes { kBf16, kF16, kInt8, kFp8 };

/// Descriptor of rows of 128 bytes in shared memory, swizzled; groups of eight rows follow one
/// another. Advances by bytes / 16 within a row. Where rows are columns of the operand, 64 columns
/// take `kColumnsBytes`.
template <int kColumnsBytes = 16>
__device__ inline uint64_t swizzled_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | uint64_t{kColumnsBytes >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
/// Descriptor of matrices of 8 rows and 16 bytes, 128 bytes each, without a swizzle: bytes from the
/// matrix of 16 bytes of a row to that of the next 16, and to that of the next 8 rows.
__device__ inline uint64_t unswizzled_descriptor(uint32_t address, int columns_step,
                                                 int rows_step) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<uint64_t>(columns_step >> 4) << 16 |
         static_cast<uint64_t>(rows_step >> 4) << 32;
}

/// Orders earlier accesses to registers before the next wgmma.
__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kOpen>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
}
/// Keeps the compiler from moving accesses to sums across this point.
template <class Sum, int kCount>
__device__ inline void pin(Sum (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_same_v<Sum, float>)
      asm volatile("" : "+f"(sum[i])::"memory");
    else
      asm volatile("" : "+r"(sum[i])::"memory");
  }
}

// Lists of registers, as text and as operands.
#define MORACLE_8(a, b, c, d, e, f, g, h) \
  "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define MORACLE_D8 MORACLE_8(0, 1, 2, 3, 4, 5, 6, 7)
#define MORACLE_D16 MORACLE_D8 "," MORACLE_8(8, 9, 10, 11, 12, 13, 14, 15)
#define MORACLE_D20 MORACLE_D16 ",%16,%17,%18,%19"
#define MORACLE_D24 MORACLE_D16 "," MORACLE_8(16, 17, 18, 19, 20, 21, 22, 23)
#define MORACLE_D32 MORACLE_D24 "," MORACLE_8(24, 25, 26, 27, 28, 29, 30, 31)
#define MORACLE_D48 \
  MORACLE_D32       \
  "," MORACLE_8(32, 33, 34, 35, 36, 37, 38, 39) "," MORACLE_8(40, 41, 42, 43, 44, 45, 46, 47)
#define MORACLE_D56 MORACLE_D48 "," MORACLE_8(48, 49, 50, 51, 52, 53, 54, 55)
#define MORACLE_D64 \
  MORACLE_D48       \
  "," MORACLE_8(48, 49, 50, 51, 52, 53, 54, 55) "," MORACLE_8(56, 57, 58, 59, 60, 61, 62, 63)
#define MORACLE_D72 \
  MORACLE_D64       \
  "," MORACLE_8(64, 65, 66, 67, 68, 69, 70, 71)
#define MORACLE_D80 \
  MORACLE_D64       \
  "," MORACLE_8(64, 65, 66, 67, 68, 69, 70, 71) "," MORACLE_8(72, 73, 74, 75, 76, 77, 78, 79)
#define MORACLE_D96 \
  MORACLE_D80       \
  "," MORACLE_8(80, 81, 82, 83, 84, 85, 86, 87) "," MORACLE_8(88, 89, 90, 91, 92, 93, 94, 95)
#define MORACLE_D112                                                                            \
  MORACLE_D96                                                                                   \
  "," MORACLE_8(96, 97, 98, 99, 100, 101, 102, 103) "," MORACLE_8(104, 105, 106, 107, 108, 109, \
                                                                  110, 111)
#define MORACLE_D128                                                                           \
  MORACLE_D112                                                                                 \
  "," MORACLE_8(112, 113, 114, 115, 116, 117, 118, 119) "," MORACLE_8(120, 121, 122, 123, 124, \
                                                                      125, 126, 127)
#define MORACLE_IO4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define MORACLE_IO8(c, i) MORACLE_IO4(c, i), MORACLE_IO4(c, i + 4)
#define MORACLE_IO16(c, i) MORACLE_IO8(c, i), MORACLE_IO8(c, i + 8)
#define MORACLE_IO20(c, i) MORACLE_IO16(c, i), MORACLE_IO4(c, i + 16)
#define MORACLE_IO32(c, i) MORACLE_IO16(c, i), MORACLE_IO16(c, i + 16)
#define MORACLE_IO48(c, i) MORACLE_IO32(c, i), MORACLE_IO16(c, i + 32)
#define MORACLE_IO56(c, i) MORACLE_IO48(c, i), MORACLE_IO8(c, i + 48)
#define MORACLE_IO64(c, i) MORACLE_IO32(c, i), MORACLE_IO32(c, i + 32)
#define MORACLE_IO72(c, i) MORACLE_IO64(c, i), MORACLE_IO8(c, i + 64)
#define MORACLE_IO96(c, i) MORACLE_IO64(c, i), MORACLE_IO32(c, i + 64)
#define MORACLE_IO128(c, i) MORACLE_IO64(c, i), MORACLE_IO64(c, i + 64)
// The numbers are those of the four registers of a, of b's descriptor and of `add`.
#define MORACLE_WGMMA(n, count, c, kind, tail, a0, a1, a2, a3, b0, add0)               \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add0                          \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n kind " {" MORACLE_D##count \
               "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b0 ", add" tail ";\n}"   \
               : MORACLE_IO##count(c, 0)                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))
#define MORACLE_WGMMA_OF(c, kind, tail)                                                            \
  do {                                                                                             \
    if constexpr (kN == 16) MORACLE_WGMMA(16, 8, c, kind, tail, 8, 9, 10, 11, 12, 13);             \
    if constexpr (kN == 32) MORACLE_WGMMA(32, 16, c, kind, tail, 16, 17, 18, 19, 20, 21);          \
    if constexpr (kN == 40) MORACLE_WGMMA(40, 20, c, kind, tail, 20, 21, 22, 23, 24, 25);          \
    if constexpr (kN == 48) MORACLE_WGMMA(48, 24, c, kind, tail, 24, 25, 26, 27, 28, 29);          \
    if constexpr (kN == 64) MORACLE_WGMMA(64, 32, c, kind, tail, 32, 33, 34, 35, 36, 37);          \
    if constexpr (kN == 96) MORACLE_WGMMA(96, 48, c, kind, tail, 48, 49, 50, 51, 52, 53);          \
    if constexpr (kN == 112) MORACLE_WGMMA(112, 56, c, kind, tail, 56, 57, 58, 59, 60, 61);        \
    if constexpr (kN == 128) MORACLE_WGMMA(128, 64, c, kind, tail, 64, 65, 66, 67, 68, 69);        \
    if constexpr (kN == 144) MORACLE_WGMMA(144, 72, c, kind, tail, 72, 73, 74, 75, 76, 77);        \
    if constexpr (kN == 192) MORACLE_WGMMA(192, 96, c, kind, tail, 96, 97, 98, 99, 100, 101);      \
    if constexpr (kN == 256) MORACLE_WGMMA(256, 128, c, kind, tail, 128, 129, 130, 131, 132, 133); \
  } while (false)
#define MORACLE_IO24(c, i) MORACLE_IO16(c, i), MORACLE_IO8(c, i + 16)
#define MORACLE_FLOAT "+f"
#define MORACLE_INTEGER "+r"

/// d += a · b, or d = a · b without `add`. Asynchronous: see wgmma_commit and wgmma_wait. kColumns:
/// rows of b in shared memory are columns of the operand (bf16).
template <WgmmaTypes kTypes, int kN, bool kColumns = false, class Sum>
__device__ __forceinline__ void wgmma(Sum (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b,
                                      bool add) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(!kColumns || kTypes == WgmmaTypes::kBf16);
  static_assert(kN == 16 || kN == 32 || kN == 40 || kN == 48 || kN == 64 || kN == 96 || kN == 112 ||
                kN == 128 || kN == 144 || kN == 192 || kN == 256);
  if constexpr (kColumns)
    MORACLE_WGMMA_OF(MORACLE_FLOAT, "k16.f32.bf16.bf16", ", 1, 1, 1");
  else if constexpr (kTypes == WgmmaTypes::kBf16)
    MORACLE_WGMMA_OF(MORACLE_FLOAT, "k16.f32.bf16.bf16", ", 1, 1, 0");
  else if constexpr (kTypes == WgmmaTypes::kFp8)
    MORACLE_WGMMA_OF(MORACLE_FLOAT, "k32.f32.e4m3.e4m3", ", 1, 1");
  else
    MORACLE_WGMMA_OF(MORACLE_INTEGER, "k32.s32.s8.s8", "");
#endif
}

/// d += a · b with all 64 rows of a in shared memory and 256 columns; `d` holds floats as well.
template <WgmmaTypes kTypes>
__device__ __forceinline__ void wgmma_n256(uint32_t (&d)[128], uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MORACLE_WGMMA_SHARED(kind, scales)                                   \
  asm volatile("wgmma.mma_async.sync.aligned.m64n256" kind " {" MORACLE_D128 \
               "}, %128, %129, 1" scales ";"                                 \
               : MORACLE_IO128(MORACLE_INTEGER, 0)                           \
               : "l"(a), "l"(b))
  if constexpr (kTypes == WgmmaTypes::kBf16)
    MORACLE_WGMMA_SHARED("k16.f32.bf16.bf16", ", 1, 1, 0, 0");
  else if constexpr (kTypes == WgmmaTypes::kF16)
    MORACLE_WGMMA_SHARED("k16.f32.f16.f16", ", 1, 1, 0, 0");
  else if constexpr (kTypes == WgmmaTypes::kFp8)
    MORACLE_WGMMA_SHARED("k32.f32.e4m3.e4m3", ", 1, 1");
  else
    MORACLE_WGMMA_SHARED("k32.s32.s8.s8", "");
#undef MORACLE_WGMMA_SHARED
#endif
}

/// d += a · b, or d = a · b without `add`, in e4m3, with all 64 rows of a in shared memory and 128
/// columns.
__device__ __forceinline__ void wgmma_n128_fp8(float (&d)[64], uint64_t a, uint64_t b, bool add) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" MORACLE_D64
      "}, %64, %65, add, 1, 1;\n}"
      : MORACLE_IO64(MORACLE_FLOAT, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
#endif
}

/// Gives the warpgroup more registers, or takes some of them. All of its threads call.
template <int kRegisters>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#undef MORACLE_8
#undef MORACLE_D8
#undef MORACLE_D16
#undef MORACLE_D24
#undef MORACLE_D32
#undef MORACLE_D48
#undef MORACLE_D56
#undef MORACLE_D64
#undef MORACLE_D72
#undef MORACLE_D80
#undef MORACLE_D96
#undef MORACLE_D112
#undef MORACLE_D128
#undef MORACLE_IO4
#undef MORACLE_IO8
#undef MORACLE_IO16
#undef MORACLE_IO24
#undef MORACLE_IO32
#undef MORACLE_IO48
#undef MORACLE_IO56
#undef MORACLE_IO64
#undef MORACLE_IO72
#undef MORACLE_IO96
#undef MORACLE_IO128
#undef MORACLE_WGMMA
#undef MORACLE_WGMMA_OF
#undef MORACLE_FLOAT
#undef MORACLE_INTEGER

}  // namespace moracle::cuda
