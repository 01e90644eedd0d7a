// Sums over ranks in host memory.
#pragma once

#include <span>

#include "base/threads/thread_pool.h"
#include "moracle/base.h"

namespace moracle {

/// to[i] = inputs[0][i] + inputs[1][i] + … in this order, in f32, rounded once to the type. `to`
/// may be one of the inputs. f32, bf16 or f16.
void sum_inputs(std::span<const void* const> inputs, DType type, int64_t count, void* to,
                ThreadPool& pool);

}  // namespace moracle
