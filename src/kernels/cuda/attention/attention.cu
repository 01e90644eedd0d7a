// Chooses the attention kernels.
#include "kernels/cuda/attention/attention.cuh"

#include "kernels/cuda/attention/heads.cuh"

namespace moracle::cuda {
namespace {

// True if this build has sm90 kernels for this GPU. Later GPUs run the sm80 kernels.
bool has_sm90(const Queue& queue) {
#if defined(MORACLE_WITH_SM90A)
  return queue.capability == 90;
#else
  static_cast<void>(queue);
  return false;
#endif
}

// True if the tensor-core kernels serve these heads on this GPU.
bool uses_tensor_cores(const AttendArgs& args, const Queue& queue) {
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

}  // namespace

Status attend(const AttendArgs& args, const Queue& queue, Stream stream) {
  if (args.shape.selected != nullptr) return launch_selected(args, queue, stream);
  if (!uses_tensor_cores(args, queue)) return launch_generic(args, queue, stream);
  const Batch& batch = args.batch;
  const bool sm90 = has_sm90(queue), batch_invariant = args.shape.batch_invariant;
  if (batch_invariant || batch.fewest_tokens <= kMostDecodeTokens)
    MORACLE_CHECK((sm90 ? launch_decode_sm90 : launch_decode_sm80)(args, queue, stream));
  if (batch_invariant || batch.most_tokens <= kMostDecodeTokens) return {};
  // The sm90 kernel finds the largest score before it scales.
  const bool prefill_sm90 = sm90 && args.shape.scale > 0;
  return (prefill_sm90 ? launch_prefill_sm90 : launch_prefill_sm80)(args, queue, stream);
}

}  // namespace moracle::cuda
