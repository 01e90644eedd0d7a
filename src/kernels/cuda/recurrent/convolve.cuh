// The short convolution and its state.
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/ops.h"

namespace moracle::cuda {

struct ConvolveArgs {
  Matrix x;
  const float* weight;  // [kernel, columns]
  ConvolutionShape shape;
  Batch batch;
  Matrix out;

  __device__ const float* state_before(int32_t sequence) const {
    return at_state(batch.states[2 * sequence]);
  }
  __device__ float* state_after(int32_t sequence) const {
    return at_state(batch.states[2 * sequence + 1]);
  }

 private:
  __device__ float* at_state(std::byte* base) const {
    return base == nullptr ? nullptr : reinterpret_cast<float*>(base + shape.state);
  }
};

/// True if convolve_eights supports these columns: whole aligned vectors of bf16, 2 to 4 taps
/// without dilation.
bool convolves_eights(const ConvolveArgs& args);
Status convolve_eights(const ConvolveArgs& args, const Queue& queue, Stream stream);
/// Any float type and number of taps.
Status convolve_simply(const ConvolveArgs& args, const Queue& queue, Stream stream);

}  // namespace moracle::cuda
