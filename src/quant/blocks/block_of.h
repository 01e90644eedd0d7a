// The interface of a block type's file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moracle/quant.h"

namespace moracle {

/// One block of GGUF in integer form.
///
///   value(i) = (codes[i] - zero point) * scales[g] - minimums[g],  g = i / group.cols
///
/// The product is exact in f32 for every type, and so is the value of a type without minimums. With
/// minimums the subtraction rounds once.
struct BlockNumbers {
  static constexpr int kMaxElements = 256, kMaxGroups = 16;
  alignas(16) int8_t codes[kMaxElements];  ///< of kForm.dtype, one in each byte
  float scales[kMaxGroups];
  float minimums[kMaxGroups];  ///< only if kForm.minimums
  float scale_factor;          ///< only if kForm.scale_dtype is kI8, and the next one
  float minimum_factor;        ///< only if kForm.minimums, too
};

/// Each block type of GGUF has a specialization, in its own file in codecs/gguf/. Its comment is
/// the specification of the block. Blocks need no alignment. Numbers of several bytes are
/// little-endian.
///
///   static constexpr Block kBlock          its elements and bytes
///   static constexpr QuantKey kForm        the canonical key that holds the values exactly
///   static constexpr int kZeroPoint        the zero point of every group; 0 for symmetric keys
///   static void unpack(const std::byte* block, BlockNumbers& to)
///   static bool is_finite(const std::byte* block)   false: a scale is NaN or infinite
template <DType type>
struct BlockOf;

}  // namespace moracle
