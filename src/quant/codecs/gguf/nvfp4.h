#pragma once

#include "quant/codecs/gguf/block_bytes.h"
#include "quant/codecs/gguf/mxfp4.h"

namespace moracle {

/// NVFP4 of GGUF: 64 elements in 36 bytes, 4.5 bits each. e2m1 codes of 16.
///
///   0   u8   d[4]     group g of 16: its scale, e4m3 whose bit 7 has no meaning
///   4   u8   qs[32]   group g: e2m1 codes in bytes 8 g to 8 g + 7; low nibbles: elements 0 to 7 of
///                     the group; high nibbles: 8 to 15
///
///   value = e4m3 * e2m1
///
/// Code 8 (minus zero) becomes 0. Scale 0x7f is 0 and 0xff is 480, as in llama.cpp. The factor of
/// the whole tensor is a tensor of its own.
template <>
struct BlockOf<DType::kNvfp4Block> {
  static constexpr QuantKey kForm = kNvfp4Static;
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    for (int g = 0; g < 4; ++g) {
      to.scales[g] = scale_of(byte_at(block, g));
      for (int i = 0; i < 8; ++i) {
        const int byte = byte_at(block + 4 + 8 * g, i);
        to.codes[16 * g + i] = e2m1_without_minus_zero(byte & 15);
        to.codes[16 * g + 8 + i] = e2m1_without_minus_zero(byte >> 4);
      }
    }
  }

  static bool is_finite(const std::byte*) { return true; }

 private:
  static float scale_of(int bits) {
    if (bits == 0x7f) return 0;
    if (bits == 0xff) return 480;
    return e4m3_to_float(static_cast<uint8_t>(bits & 0x7f));
  }
};

}  // namespace moracle
