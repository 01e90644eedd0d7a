// The interface of an encoder of one block type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/scalar.h"
#include "quant/blocks/block_of.h"
#include "quant/codecs/gguf/encode/group_fit.h"

namespace moracle {

/// Each block type that this library writes has a specialization in codecs/gguf/encode/. The type's
/// BlockOf specifies the bytes.
///
///   static void encode(const float* x, std::byte* block)   finite values of one block
///
/// A scale beyond f16 becomes infinity in the block; BlockOf::is_finite detects it.
template <DType type>
struct BlockEncoder;

/// Stores an f16 number; returns its value.
inline float store_f16(float value, std::byte* to) {
  const uint16_t half = float_to_f16(value);
  std::memcpy(to, &half, sizeof half);
  return f16_to_float(half);
}

/// Stores 32 codes of 4 bits in 16 bytes: low nibbles are codes 0 to 15, high nibbles 16 to 31.
inline void store_nibble_halves(const uint8_t* codes, std::byte* to) {
  for (int i = 0; i < 16; ++i) to[i] = static_cast<std::byte>(codes[i] | codes[16 + i] << 4);
}

}  // namespace moracle
