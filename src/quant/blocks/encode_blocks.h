// Quantizes rows of floats to GGUF's block types.
#pragma once

#include <span>

#include "moracle/base.h"

namespace moracle {

/// The types that encode_blocks writes.
std::span<const DType> encoded_blocks();

/// Quantizes `count` blocks of finite values. A group of zeros has codes of 0. Errors
/// (kUnsupported): values that the block's f16 scale cannot hold; the place is "block 3".
Status encode_blocks(DType type, const float* values, int64_t count, std::byte* blocks);

}  // namespace moracle
