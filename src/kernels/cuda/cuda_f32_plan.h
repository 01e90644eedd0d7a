// Plans backend cuda-f32. Plain C++, so that builds without CUDA can plan it, too.
#pragma once

#include <cstdint>

namespace moracle::cuda {

/// Most rows of the GEMV.
inline constexpr int64_t kDenseGemvF32Rows = 8;

}  // namespace moracle::cuda
