// Rows of n-grams in their table. A thread per head of a token; those of a sequence's first token
// also write its last tokens to the new state.
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace moracle {
namespace cuda {
namespace {

struct HashElement {
  NgramShape shape;
  Batch batch;
  int32_t* rows;

  __device__ const int32_t* before(int32_t sequence) const {
    const std::byte* const state = batch.states[2 * sequence];
    return state == nullptr ? nullptr : reinterpret_cast<const int32_t*>(state + shape.state);
  }
  // Token `at` of a sequence, counted from the step's first one.
  __device__ int32_t token(int32_t sequence, int64_t at) const {
    if (at >= 0) return batch.ids[batch.first_token[sequence] + at];
    const int32_t* const kept = before(sequence);
    return kept == nullptr ? shape.boundary : kept[shape.size - 1 + at];
  }
  __device__ void operator()(int64_t r, int64_t head) const {
    const int32_t sequence = batch.sequences[r];
    const int64_t first = batch.first_token[sequence], t = r - first, kept = shape.size - 1;
    uint64_t mixed = static_cast<uint64_t>(token(sequence, t)) * shape.multipliers[0];
    bool ended = false;
    for (int64_t j = 1; j <= head / shape.heads + 1; ++j) {
      const int32_t id = ended ? shape.boundary : token(sequence, t - j);
      ended = ended || id == shape.boundary;
      mixed ^= static_cast<uint64_t>(id) * shape.multipliers[j];
    }
    rows[r * kept * shape.heads + head] =
        static_cast<int32_t>(shape.offsets[head] + mixed % shape.sizes[head]);
    if (t > 0 || head >= kept) return;
    const int64_t count = batch.first_token[sequence + 1] - first;
    auto* const after = reinterpret_cast<int32_t*>(batch.states[2 * sequence + 1] + shape.state);
    after[head] = token(sequence, count - kept + head);
  }
};

}  // namespace
}  // namespace cuda

Status CudaOps::hash_ngrams(const NgramShape& shape, const Batch& batch, int32_t* rows,
                            Stream stream) {
  return cuda::launch_elements(queue_, stream, "hash_ngrams", batch.num_tokens,
                               (shape.size - 1) * shape.heads,
                               cuda::HashElement{shape, batch, rows});
}

}  // namespace moracle
