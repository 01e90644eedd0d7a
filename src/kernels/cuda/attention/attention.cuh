// Paged attention: arguments and entry point.
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

/// Chooses the kernels by GPU, heads and the tokens of each sequence, and enqueues them.
Status attend(const AttendArgs& args, const Queue& queue, Stream stream);

// Tensor-core kernels: bf16 queries and outputs, head sizes of visit_heads() (heads.cuh). A decode
// kernel serves sequences with up to kMostDecodeTokens tokens in the step, a prefill kernel the
// others.
Status launch_decode_sm80(const AttendArgs& args, const Queue& queue, Stream stream);
Status launch_decode_sm90(const AttendArgs& args, const Queue& queue, Stream stream);
Status launch_prefill_sm80(const AttendArgs& args, const Queue& queue, Stream stream);
/// Needs a positive scale.
Status launch_prefill_sm90(const AttendArgs& args, const Queue& queue, Stream stream);

/// Tokens that see only selected positions, of any head sizes and dtypes.
Status launch_selected(const AttendArgs& args, const Queue& queue, Stream stream);

/// Any head sizes and dtypes.
Status launch_generic(const AttendArgs& args, const Queue& queue, Stream stream);

}  // namespace moracle::cuda
