// Converts rows of GGUF's block types to the canonical form, or to floats.
#pragma once

#include "moracle/quant.h"

namespace moracle {

class ThreadPool;

/// The canonical key that holds every value of a block type: integer or e2m1 codes with the scales,
/// zero points and minimums of their groups. `block` must be a block type.
QuantKey integer_form(DType block);

/// Rows [n, k] of blocks in the canonical form that integer_form names. Its scales are exact. Its
/// values are those of decode_blocks, except that a type with minimums is not rounded to f32 after
/// the subtraction. `k` is a multiple of the block. The threads of the pool share the rows.
CanonicalMatrix expand_blocks(DType type, const std::byte* rows, int64_t n, int64_t k,
                              ThreadPool& pool);

/// The values of `count` blocks in f32, bit for bit those of `gguf.quants.dequantize` of PyPI's
/// gguf: scale times code, exact, minus the minimum, rounded once.
void decode_blocks(DType type, const std::byte* blocks, int64_t count, float* values);

/// Index of the first of `count` blocks with a scale that is NaN or infinite; -1 if there is none.
int64_t first_not_finite_block(DType type, const std::byte* blocks, int64_t count);

}  // namespace moracle
