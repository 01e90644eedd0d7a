#pragma once

#include <array>

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
/// the whole tensor is a separate tensor.
template <>
struct BlockOf<DType::kNvfp4Block> {
  static constexpr Block kBlock = {64, 36};
  static constexpr QuantKey kForm = kNvfp4Static;
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    for (int g = 0; g < 4; ++g) {
      to.scales[g] = kScales[byte_at(block, g)];
      const auto bytes = number_at<uint64_t>(block + 4 + 8 * g);
      store_e2m1(bytes, to.codes + 16 * g);
      store_e2m1(bytes >> 4, to.codes + 16 * g + 8);
    }
  }

  static bool is_finite(const std::byte*) { return true; }

 private:
  static constexpr auto kScales = [] {
    std::array<float, 256> scales{};
    for (size_t bits = 0; bits < scales.size(); ++bits)
      scales[bits] = e4m3_to_float(static_cast<uint8_t>(bits & 0x7f));
    scales[0x7f] = 0;
    scales[0xff] = 480;
    return scales;
  }();
};

}  // namespace moracle
