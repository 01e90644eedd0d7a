// Reads codes of layout mma16 from shared memory and unpacks them in registers for the tensor
// cores. All conversions are exact: bf16 and f16 represent codes of 8 bits and fewer.
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/ptx/arithmetic.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"

namespace moracle::cuda {

using Bf16x2 = __nv_bfloat162;

__device__ inline Bf16x2 as_bf16x2(uint32_t bits) {
  return *reinterpret_cast<Bf16x2*>(&bits);
}
__device__ inline uint32_t as_bits(Bf16x2 pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}
__device__ inline uint32_t as_bits(__half2 pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}
/// Returns a pair of the same integer in bf16. Its magnitude is at most 256.
__device__ inline uint32_t both_bf16(int value) {
  return as_bits(__float2bfloat162_rn(static_cast<float>(value)));
}

/// The same in f16. The magnitude is at most 2,048.
__device__ inline uint32_t both_f16(int value) {
  return as_bits(__float2half2_rn(static_cast<float>(value)));
}
__device__ inline __half2 as_half2(uint32_t bits) {
  return *reinterpret_cast<__half2*>(&bits);
}

/// Unpacks eight two's complement nibbles into four pairs of neighbouring columns. `zero` is 136
/// plus the zero point, in bf16. A nibble with its highest bit flipped, placed below the bits of
/// 128.0, is 128 + 8 + code.
__device__ inline void unpack_i4(uint32_t nibbles, uint32_t zero, uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t biased = and_xor<0x000f000f, 0x43084308>(nibbles >> (4 * i));
    pairs[i] = as_bits(__hsub2(as_bf16x2(biased), as_bf16x2(zero)));
  }
}

/// Unpacks them to 1/64 of the codes, with one shift instead of three. `zero` is -(8 + zero point)
/// / 64, in bf16. A nibble with its highest bit flipped is 8 + code. In the lowest eight bits of a
/// bf16, all else 0, it is a multiple of 2^-133, which one fma moves to its place.
__device__ inline void unpack_i4_by_64(uint32_t nibbles, uint32_t zero, uint32_t (&pairs)[4]) {
  const Bf16x2 low = as_bf16x2(0x7f007f00u), high = as_bf16x2(0x7d007d00u);  // 2^127, 2^123
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t four = nibbles >> (8 * i);
    pairs[2 * i] =
        as_bits(__hfma2(as_bf16x2(and_xor<0x000f000f, 0x00080008>(four)), low, as_bf16x2(zero)));
    pairs[2 * i + 1] =
        as_bits(__hfma2(as_bf16x2(and_xor<0x00f000f0, 0x00800080>(four)), high, as_bf16x2(zero)));
  }
}

/// The same as unpack_i4 in f16. `zero` is 1,032 plus the zero point: a nibble below the bits of
/// 1,024.0.
__device__ inline void unpack_i4_f16(uint32_t nibbles, uint32_t zero, uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t biased = and_xor<0x000f000f, 0x64086408>(nibbles >> (4 * i));
    pairs[i] = as_bits(__hsub2(as_half2(biased), as_half2(zero)));
  }
}

/// Unpacks four two's complement bytes into two pairs. The low seven bits, placed below the bits of
/// 128.0, are 128 plus their value. The eighth bit, in its place, turns the subtracted 128.0 into
/// 256.0.
__device__ inline void unpack_i8(uint32_t bytes, uint32_t (&pairs)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t spread = __byte_perm(bytes, 0, i == 0 ? 0x4140 : 0x4342);
    const uint32_t low = and_xor<0x007f007f, 0x43004300>(spread);
    const uint32_t high = and_xor<0x00800080, 0x43004300>(spread);
    pairs[i] = as_bits(__hsub2(as_bf16x2(low), as_bf16x2(high)));
  }
}
__device__ inline void subtract(uint32_t zero, uint32_t (&pairs)[2]) {
#pragma unroll
  for (uint32_t& pair : pairs) pair = as_bits(__hsub2(as_bf16x2(pair), as_bf16x2(zero)));
}

/// Converts two e4m3 in the low half of a register to f16.
__device__ inline __half2 e4m3x2_to_half2(uint32_t two) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  return __half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3));
#else
  // Exponent and mantissa have the same order in f16 as in e4m3; the value is eight binades lower.
  const uint32_t codes = __byte_perm(two, 0, 0x4140);
  const uint32_t bits = (codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 7;
  uint32_t value =
      as_bits(__hmul2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(256)));
  if ((codes & 0x7fu) == 0x7fu) value |= 0x00007fffu;
  if ((codes & 0x7f0000u) == 0x7f0000u) value |= 0x7fff0000u;
  return *reinterpret_cast<const __half2*>(&value);
#endif
}
/// Reads two e4m3 scales.
__device__ inline float2 read_e4m3_scales(const uint8_t* two) {
  return __half22float2(e4m3x2_to_half2(*reinterpret_cast<const uint16_t*>(two)));
}
__device__ inline void unpack_e4m3(uint32_t bytes, uint32_t (&pairs)[2]) {
  pairs[0] = as_bits(e4m3x2_to_half2(bytes & 0xffffu));
  pairs[1] = as_bits(e4m3x2_to_half2(bytes >> 16));
}
__device__ inline void unpack_e4m3_bf16(uint32_t bytes, uint32_t (&pairs)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 two = __half22float2(e4m3x2_to_half2(i == 0 ? bytes & 0xffffu : bytes >> 16));
    pairs[i] = as_bits(__float22bfloat162_rn(two));
  }
}

/// Spreads eight e2m1 to four pairs of bf16 that are 126 binades too low: exponent and mantissa
/// have the same order in both. A product moves sign and magnitude to their places, so that
/// multiplications and masks keep different units busy.
__device__ inline void spread_e2m1_bf16(uint32_t nibbles, uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t four = i < 2 ? nibbles : nibbles >> 8;
    const uint32_t spread = i % 2 == 0 ? (four & 0x000f000fu) * ((1 << 12) + (1 << 6))
                                       : (four & 0x00f000f0u) * ((1 << 8) + (1 << 2));
    pairs[i] = spread & 0x81c081c0u;
  }
}
/// Unpacks eight e2m1 into four pairs of bf16.
__device__ inline void unpack_e2m1(uint32_t nibbles, uint32_t (&pairs)[4]) {
  const Bf16x2 up = as_bf16x2(0x7e807e80u);  // 2^126
  spread_e2m1_bf16(nibbles, pairs);
#pragma unroll
  for (uint32_t& pair : pairs) pair = as_bits(__hmul2(as_bf16x2(pair), up));
}

/// The same in f16. The bits of e2m1, in the highest places of exponent and mantissa that it has,
/// are 14 binades too low.
__device__ inline void unpack_e2m1_f16(uint32_t nibbles, uint32_t (&pairs)[4]) {
  const __half2 up = as_half2(0x74007400u);  // 2^14
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t sign = nibbles << (12 - 4 * i) & 0x80008000u;
    const uint32_t size = (i < 3 ? nibbles << (9 - 4 * (i % 3)) : nibbles >> 3) & 0x0e000e00u;
    pairs[i] = as_bits(__hmul2(as_half2(sign | size), up));
  }
}

/// Splits two f16 into sums of two bf16: `high` has 8 of their 11 bits, `low` the rest.
__device__ inline void split_f16(uint32_t halves, uint32_t& high, uint32_t& low) {
  const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&halves));
  const Bf16x2 nearest = __float22bfloat162_rn(two);
  const float2 rounded = __bfloat1622float2(nearest);
  high = as_bits(nearest);
  // Avoid infinity minus infinity, which would be NaN.
  low = as_bits(__float22bfloat162_rn({rounded.x == two.x ? 0.0f : two.x - rounded.x,
                                       rounded.y == two.y ? 0.0f : two.y - rounded.y}));
}

/// Splits two finite f32 into sums of two bf16, with 16 significant bits: `high` has their first 8
/// bits, `low` the next 8 of the rest. Cutting takes fewer instructions than rounding.
__device__ inline void split_f32(float2 two, uint32_t& high, uint32_t& low) {
  const uint32_t x = __float_as_uint(two.x), y = __float_as_uint(two.y);
  high = __byte_perm(x, y, 0x7632);
  low = as_bits(__float22bfloat162_rn(
      {two.x - __uint_as_float(x & 0xffff0000u), two.y - __uint_as_float(y & 0xffff0000u)}));
}

/// Spreads eight two's complement nibbles to bytes of 16 times their value: columns 0 to 3, and 4
/// to 7.
__device__ inline void spread_i4(uint32_t nibbles, uint32_t (&fours)[2]) {
  const uint32_t even = nibbles << 4 & 0xf0f0f0f0u, odd = nibbles & 0xf0f0f0f0u;
  fours[0] = __byte_perm(even, odd, 0x6420);
  fours[1] = __byte_perm(even, odd, 0x7531);
}

/// Spreads eight e2m1 to two's complement bytes of twice their value, in the same way.
__device__ inline void spread_e2m1(uint32_t nibbles, uint32_t (&fours)[2]) {
  uint32_t bytes[2];  // of nibbles 0 to 3, and 4 to 7
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t four = nibbles >> (16 * i), magnitude = four & 0x7777u;
    const uint32_t plus = __byte_perm(0x03020100u, 0x0c080604u, magnitude);
    const uint32_t minus = __byte_perm(0xfdfeff00u, 0xf4f8fafcu, magnitude);
    const uint32_t negative = __byte_perm(0x0000ff00u, 0, four >> 3 & 0x1111u);
    bytes[i] = (plus & ~negative) | (minus & negative);
  }
  fours[0] = __byte_perm(bytes[0], bytes[1], 0x5140);
  fours[1] = __byte_perm(bytes[0], bytes[1], 0x7362);
}

// Reads a lane's words of a k-block from shared memory.
__device__ inline void read_words(const uint8_t* from, uint32_t (&to)[1]) {
  to[0] = *reinterpret_cast<const uint32_t*>(from);
}
__device__ inline void read_words(const uint8_t* from, uint32_t (&to)[2]) {
  const uint2 two = *reinterpret_cast<const uint2*>(from);
  to[0] = two.x, to[1] = two.y;
}
__device__ inline void read_words(const uint8_t* from, uint32_t (&to)[4]) {
  const uint4 four = *reinterpret_cast<const uint4*>(from);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
// Reads 16 columns for one instruction, and 16 for the next.
__device__ inline void read_words(const uint8_t* from, uint32_t (&to)[8]) {
  const auto* const four = reinterpret_cast<const uint4*>(from);
  const uint4 low = four[0], high = four[32];
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

/// Reads a lane's words of a k-block of codes, or of a part of it, from shared memory. The block's
/// first byte is `from`.
template <int kCodeBits, int kWords>
__device__ inline void read_codes(const uint8_t* from, uint32_t (&to)[kWords]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (kCodeBits == 8) {
    uint32_t of_rows[4];  // of one row, then of the next
    ldmatrix_x4(of_rows, from + lane * 16);
    to[0] = of_rows[0], to[1] = of_rows[2], to[2] = of_rows[1], to[3] = of_rows[3];
  } else {
    read_words(from + lane * (kCodeBits == 4 ? 8 : 16), to);
  }
}

/// Reads half k-blocks: lane t of a quad gets columns 4 t to 4 t + 3 of each half, in place of
/// columns 8 t to 8 t + 7 of the block.
template <int kCodeBits, int kWords>
__device__ inline void read_half_codes(const uint8_t* from, uint32_t (&to)[kWords]) {
  static_assert(kCodeBits == 4 || kCodeBits == 8);
  const int row = static_cast<int>(threadIdx.x % 32 / 4), t = static_cast<int>(threadIdx.x % 4);
  const bool odd = t % 2 != 0;
  if constexpr (kCodeBits == 8) {
    // Odd lanes read the second half first: their matrix lies in the banks of that of even lanes.
    const uint8_t* const own = from + t % 2 * 128 + row * 16 + t / 2 * 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t first = *reinterpret_cast<const uint32_t*>(own + h * 256 + (odd ? 8 : 0));
      const uint32_t second = *reinterpret_cast<const uint32_t*>(own + h * 256 + (odd ? 0 : 8));
      to[h] = odd ? second : first;
      to[2 + h] = odd ? first : second;
    }
  } else {
    const auto* const two = reinterpret_cast<const uint2*>(from + (row * 4 + t / 2) * 8);
    const uint2 first = two[0], second = two[2];
    const uint32_t quads = odd ? 0x7351 : 0x6240;  // the same four of eight columns of both
    to[0] = __byte_perm(first.x, second.x, quads);
    to[1] = __byte_perm(first.y, second.y, quads);
  }
}

}  // namespace moracle::cuda
