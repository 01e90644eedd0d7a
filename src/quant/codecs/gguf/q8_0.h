#pragma once

#include "quant/codecs/gguf/block_bytes.h"

namespace moracle {

/// Q8_0: 32 elements in 34 bytes, 8.5 bits each. int8 codes of 32, symmetric.
///
///   0   f16  d
///   2   i8   qs[32]
///
///   value = d * q
template <>
struct BlockOf<DType::kQ8_0> {
  static constexpr Block kBlock = {32, 34};
  static constexpr QuantKey kForm = with_scales(int8_static_group(32), DType::kF16);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    to.scales[0] = f16_at(block);
    std::memcpy(to.codes, block + 2, 32);
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block); }
};

}  // namespace moracle
