// Chooses the kernels of the gated delta rule.
#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/recurrent/delta_chunk.cuh"

namespace moracle::cuda {

bool chunks_delta_rule(const DeltaArgs& args, const Queue& queue) {
  const GatedDeltaShape& shape = args.shape;
  const auto fits = [](const Matrix& m) {
    return m.dtype == DType::kBF16 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0 &&
           m.stride % 8 == 0;
  };
  return !shape.batch_invariant && !shape.by_channel &&
         args.batch.most_tokens > kRecurrentDeltaTokens && shape.key_dim == kDeltaChunkDim &&
         shape.value_dim == kDeltaChunkDim && fits(args.qkv) && fits(args.out) &&
         has_room_for_chunks(queue);
}

Status chunk_delta_rule(const DeltaArgs& args, std::byte* scratch, const Queue& queue,
                        Stream stream) {
  static_assert(sizeof(DeltaTile) == kDeltaTileBytes && kHeadDim == kDeltaChunkDim);
  const Batch& batch = args.batch;
  const int64_t tiles = static_cast<int64_t>(gated_delta_scratch_bytes(args.shape, batch.num_tokens,
                                                                       args.qkv.dtype)) /
                        (args.shape.num_value_heads * kDeltaTileBytes);
  const int64_t chunks = batch.num_tokens / kChunk + batch.num_sequences;
  for (int64_t first = 0; first < chunks; first += tiles) {
    const DeltaTiles buffered{reinterpret_cast<DeltaTile*>(scratch), first,
                              std::min(tiles, chunks - first)};
    MORACLE_CHECK(prepare_chunks(args, buffered, queue, stream));
    MORACLE_CHECK(run_chunks(args, buffered, queue, stream));
  }
  return {};
}

}  // namespace moracle::cuda
