#pragma once

#include "quant/codecs/gguf/block_bytes.h"

namespace moracle {

/// Stores eight e2m1 codes, the low nibbles of the bytes of `codes`. Code 8, minus zero, becomes 0.
inline void store_e2m1(uint64_t codes, int8_t* to) {
  constexpr uint64_t kOnes = 0x0101'0101'0101'0101u;
  const uint64_t not_zero = (codes | codes >> 1 | codes >> 2) & kOnes;
  codes &= 7 * kOnes | not_zero << 3;
  std::memcpy(to, &codes, sizeof codes);
}

/// MXFP4 of GGUF: 32 elements in 17 bytes, 4.25 bits each. e2m1 codes of 32.
///
///   0   u8   e        an exponent (e8m0)
///   1   u8   qs[16]   e2m1 codes in the order of Q4_0
///
///   value = 2^(e - 127) * e2m1
///
/// Code 8 (minus zero) becomes 0, as in llama.cpp. e = 255 is NaN; llama.cpp would give 2^128 *
/// e2m1, but its check of files refuses it, too.
template <>
struct BlockOf<DType::kMxfp4Block> {
  static constexpr Block kBlock = {32, 17};
  static constexpr QuantKey kForm = kMxfp4Static;
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    to.scales[0] = e8m0_to_float(static_cast<uint8_t>(block[0]));
    for (int i = 0; i < 16; i += 8) {
      const auto bytes = number_at<uint64_t>(block + 1 + i);
      store_e2m1(bytes, to.codes + i);
      store_e2m1(bytes >> 4, to.codes + 16 + i);
    }
  }

  static bool is_finite(const std::byte* block) { return byte_at(block, 0) != 255; }
};

}  // namespace moracle
