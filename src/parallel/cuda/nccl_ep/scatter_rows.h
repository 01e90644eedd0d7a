// Moves rows to places that only the device knows.
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "moracle/base.h"

namespace moracle::cuda {

/// Row place[r] of `to` becomes row r of `from`, for r below *count (device memory) and from.rows.
/// Both have one type, no gaps, and rows of a multiple of 16 bytes. Other rows of `to` stay.
Status scatter_rows(const Queue& queue, const Matrix& from, const int32_t* place,
                    const int32_t* count, const Matrix& to, Stream stream);

}  // namespace moracle::cuda
