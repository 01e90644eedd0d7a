// Decides whether tensor cores compute attention, and which kernels run. Sequences with few tokens
// in a step run token by token. Sequences with many tokens run in tiles of tokens.
#include "kernels/cuda/attention/heads.cuh"

namespace moracle::cuda {
namespace {

// True if this build has kernels for this GPU that need Hopper: later GPUs run code for compute
// capability 8.0.
bool is_hopper(const Queue& queue) {
#if defined(MORACLE_WITH_SM90A)
  return queue.capability == 90;
#else
  static_cast<void>(queue);
  return false;
#endif
}

}  // namespace

bool attends_on_tensor_cores(const AttendArgs& args, const Queue& queue) {
  const AttentionShape& shape = args.shape;
  const auto are = [&](int64_t head_dim, int64_t value_dim) {
    return shape.head_dim == head_dim && shape.value_dim == value_dim;
  };
  const bool aligned = reinterpret_cast<uintptr_t>(args.q.data) % 16 == 0 &&
                       args.q.stride % 8 == 0 && shape.cache.keys % 16 == 0 &&
                       shape.cache.values % 16 == 0 && args.batch.page == kPagePositions;
  return queue.capability >= 80 && (are(64, 64) || are(128, 128) || are(192, 128)) && aligned &&
         args.q.dtype == DType::kBF16 && args.out.dtype == DType::kBF16;
}

Status attend_on_tensor_cores(const AttendArgs& args, const Queue& queue, Stream stream) {
  const Batch& batch = args.batch;
  if (args.shape.batch_invariant || batch.fewest_tokens <= kFewTokens)
    MORACLE_CHECK(
        (is_hopper(queue) ? attend_few_in_clusters : attend_few_tokens)(args, queue, stream));
  if (args.shape.batch_invariant || batch.most_tokens <= kFewTokens) return {};
  // The kernel for Hopper finds the largest score before it scales.
  const bool on_wgmma = is_hopper(queue) && args.shape.scale > 0;
  return (on_wgmma ? attend_many_on_wgmma : attend_many_tokens)(args, queue, stream);
}

}  // namespace moracle::cuda
