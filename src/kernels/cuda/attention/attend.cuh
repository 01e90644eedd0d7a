// What the kernels of attention take, and where they are.
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/ops.h"

namespace moracle::cuda {

struct AttendArgs {
  Matrix q, out;
  Batch batch;
  AttentionShape shape;
  std::byte* scratch;
};

/// Whether tensor cores take these heads: bf16 queries and outputs, sizes that have a kernel, a GPU
/// that multiplies bf16.
bool attends_on_tensor_cores(const AttendArgs& args, const Queue& queue);
Status attend_on_tensor_cores(const AttendArgs& args, const Queue& queue, Stream stream);

/// A block for each head of each token, any sizes and types.
Status attend_simply(const AttendArgs& args, const Queue& queue, Stream stream);

}  // namespace moracle::cuda
