// Converts rows of floats to the types of a GGUF file.
#pragma once

#include <vector>

#include "base/threads/thread_pool.h"
#include "moracle/base.h"

namespace moracle {

/// The f32 values of `count` elements of a float type.
std::vector<float> widen_values(const std::byte* data, DType type, int64_t count, ThreadPool& pool);

/// Rows [n, k] in another type. The result does not depend on the number of threads. Errors
/// (kUnsupported): a value or a scale beyond f16; the place is "row 3".
Result<std::vector<std::byte>> store_rows(const float* values, int64_t n, int64_t k, DType type,
                                          ThreadPool& pool);

}  // namespace moracle
