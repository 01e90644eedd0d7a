// Unpacks codes to row blocks of f32 and int8, written once and included by the files built for one
// instruction set. Every instruction set gives the same bits.
#pragma once

#include "kernels/cpu/ukernels/codes.h"

namespace moracle::cpu {
namespace {

/// 2^(e - 127), also below the normal numbers; NaN for 255.
MORACLE_VECTOR_INLINE Vec power_of_two(Ints e) {
  const Ints power = e == 0 ? Ints{} + 0x400000 : e << 23;
  return as<Vec>(e == 255 ? Ints{} + 0x7fc00000 : power);
}
MORACLE_VECTOR_INLINE Ints exponents(const UnpackBlocksArgs& c, int vector) {
  Ints e{};
  for (int n = 0; n < kLanes; ++n)
    e[n] = c.exponent[c.exponent_lanes == 1 ? 0 : vector * kLanes + n];
  return e;
}

template <class Code, bool kZeros>
void unpack_blocks(const UnpackBlocksArgs& c) {
  Vec zero[kVectors], scale[kVectors];
  MORACLE_VECTOR_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    zero[v] = kZeros ? to_float(widen_bytes(c.zero + v * kLanes)) : Vec{};
    scale[v] = splat(Code::kScale);
    if (c.exponent != nullptr) scale[v] = scale[v] * power_of_two(exponents(c, v));
    if (c.scale != nullptr) scale[v] = scale[v] * load(c.scale + v * kLanes);
  }
  const std::byte* from = c.codes;
  std::byte* to = c.to;
  for (int64_t i = 0, blocks = c.blocks; i < blocks; ++i, from += kRowBlockBytes) {
    Bits codes[kVectors];
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kVectors; ++v) codes[v] = load_codes(from, v);
    const auto unpack = [&](const auto& value) {
      MORACLE_VECTOR_UNROLL
      for (int column = 0; column < Code::kColumns; ++column, to += kRowBlockBytes) {
        MORACLE_VECTOR_UNROLL
        for (int v = 0; v < kVectors; ++v)
          store(to + v * kLanes * 4, value(codes[v], column, kZeros ? zero[v] : Vec{}) * scale[v]);
      }
    };
    if constexpr (Code::kHasRare) {
      auto rarity = Code::rarity(codes[0]);
      MORACLE_VECTOR_UNROLL
      for (int v = 1; v < kVectors; ++v) rarity = Code::rarer(rarity, Code::rarity(codes[v]));
      if (!Code::is_rare(rarity)) [[likely]] {
        unpack(Code::normal_value);
        continue;
      }
    }
    unpack(Code::value);
  }
}

template <class Code>
void unpack_to_f32(const UnpackBlocksArgs& c) {
  c.zero == nullptr ? unpack_blocks<Code, false>(c) : unpack_blocks<Code, true>(c);
}

/// 4-bit codes as int8: `bytes` of their numbers.
template <Bits (*bytes)(Bits)>
void unpack_to_int8(const UnpackBlocksArgs& c) {
  const std::byte* from = c.codes;
  std::byte* to = c.to;
  for (int64_t i = 0, blocks = c.blocks; i < blocks; ++i, from += kRowBlockBytes) {
    MORACLE_VECTOR_UNROLL
    for (int half = 0; half < 2; ++half, to += kRowBlockBytes) {
      MORACLE_VECTOR_UNROLL
      for (int vector = 0; vector < kVectors; ++vector) {
        const Bits codes = load_codes(from, vector);
        store(to + vector * kLanes * 4, bytes((half == 0 ? codes : codes >> 4) & 0x0f0f0f0fu));
      }
    }
  }
}

}  // namespace
}  // namespace moracle::cpu
