#pragma once

#include "quant/codecs/gguf/block_bytes.h"

namespace moracle {

/// An e2m1 code of GGUF, whose code 8 means 0.
inline int8_t e2m1_without_minus_zero(int code) {
  return static_cast<int8_t>(code == 8 ? 0 : code);
}

/// MXFP4 of GGUF: 32 elements in 17 bytes, 4.25 bits each. e2m1 codes of 32.
///
///   0   u8   e        an exponent (e8m0)
///   1   u8   qs[16]   e2m1 codes in the order of Q4_0
///
///   value = 2^(e - 127) * e2m1
///
/// Code 8 (minus zero) becomes 0, as in llama.cpp. e = 255 is NaN. Its value in llama.cpp would be
/// 2^128 * e2m1; llama.cpp's own check of files refuses it, too.
template <>
struct BlockOf<DType::kMxfp4Block> {
  static constexpr QuantKey kForm = kMxfp4Static;
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    to.scales[0] = e8m0_to_float(static_cast<uint8_t>(block[0]));
    for (int i = 0; i < 16; ++i) {
      const int byte = byte_at(block + 1, i);
      to.codes[i] = e2m1_without_minus_zero(byte & 15);
      to.codes[16 + i] = e2m1_without_minus_zero(byte >> 4);
    }
  }

  static bool is_finite(const std::byte* block) { return byte_at(block, 0) != 255; }
};

}  // namespace moracle
