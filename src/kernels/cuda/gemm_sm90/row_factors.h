// Factors of rows for kernels that multiply codes with their scales in bf16.
#pragma once

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/weights/kernel_weights.h"

namespace moracle::cuda {

/// Finds the factors of rows as weights arrive, and again after they are replaced. A row's scales
/// are e4m3, of at most four bits, times one number. Their largest is then a / 8 times a factor,
/// for one of the integers a from 8 to 15, so that all of them divided by it have four bits. Scales
/// of another origin may have no such factor: then it is the largest, and kernels round the
/// quotients to bf16.
///
/// Enqueues the change of the section row_factors of `weights`.
Status find_row_factors(const KernelWeights& weights, const Queue& queue, Stream stream);

}  // namespace moracle::cuda
