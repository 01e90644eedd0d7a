// Arguments and entry points of the attention kernels.
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

/// True if the tensor-core kernels support these heads. They need bf16 queries and outputs, sizes
/// that have a kernel, and a GPU that multiplies bf16.
bool attends_on_tensor_cores(const AttendArgs& args, const Queue& queue);
Status attend_on_tensor_cores(const AttendArgs& args, const Queue& queue, Stream stream);

/// Runs a block for each head of each token. Supports any sizes and types.
Status attend_simply(const AttendArgs& args, const Queue& queue, Stream stream);

}  // namespace moracle::cuda
