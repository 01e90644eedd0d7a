// Sums over ranks in host memory.
#pragma once

#include <span>

#include "base/threads/thread_pool.h"
#include "moracle/base.h"

namespace moracle {

/// to[i] = parts[0][i] + parts[1][i] + … in this order, in f32, rounded once to the type. `to` may
/// be one of the parts. f32, bf16 or f16.
void sum_parts(std::span<const void* const> parts, DType type, int64_t count, void* to,
               ThreadPool& pool);

}  // namespace moracle
