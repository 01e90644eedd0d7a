// Formulas and tiles of the two kernels of the chunked gated delta rule. G_i is the sum of the
// logarithms of the decays up to token i of the chunk, S the state before the chunk, β the
// strength:
//   A_ij = β_i exp(G_i - G_j) (k_i · k_j), j < i        T = (1 + A)⁻¹
//   x_i = v_i - exp(G_i) Sᵀ k_i                          u_i = Σ_j T_ij β_j x_j
//   out_i = exp(G_i) Sᵀ q_i + Σ_j≤i exp(G_i - G_j) (q_i · k_j) u_j
//   S ← exp(G_last) S + Σ_j exp(G_last - G_j) k_j ⊗ u_j
// All exponents are at most 0. q and k are not normalized: the sums are divided by their lengths.
#pragma once

#include "kernels/cuda/recurrent/chunk_products.cuh"
#include "kernels/cuda/recurrent/delta_rule.cuh"

namespace moracle::cuda {

constexpr int kHeadDim = 128;  // columns of q, k and v of a head

/// The inputs of one chunk and value head that do not depend on the state.
struct DeltaTile {
  uint16_t change[kChunk * kChunk];  ///< bf16: T_ij β_j
  uint16_t scores[kChunk * kChunk];  ///< bf16: exp(G_i - G_j) (q_i · k_j) for j <= i, else 0
  float known[kChunk];               ///< exp(G_i) / |k_i|
  float kept[kChunk];                ///< exp(G_last - G_i) / |k_i|
  float last[16];                    ///< exp(G_last), sixteen times
  float asked[kChunk];               ///< exp(G_i) / |q_i| / √key_dim
};

/// Tiles of one call: those of virtual chunks [first, first + count). The chunks of sequence s
/// begin at virtual chunk first_token[s] / kChunk + s, so that no two sequences share one.
struct DeltaTiles {
  DeltaTile* tiles;  // [count, num_value_heads]
  int64_t first, count;
};
__device__ inline int64_t first_chunk_of(const Batch& batch, int64_t sequence) {
  return batch.first_token[sequence] / kChunk + sequence;
}
/// The sequence that may have a virtual chunk: the last one that does not begin after it.
__device__ inline int64_t sequence_of_chunk(const Batch& batch, int64_t chunk) {
  int64_t low = 0, high = batch.num_sequences - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (first_chunk_of(batch, middle) <= chunk)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

/// True if a block's shared memory holds the inputs of two chunks, as on compute capability 8.0 and
/// 9.0, and the GPU multiplies bf16.
bool has_room_for_chunks(const Queue& queue);
Status prepare_chunks(const DeltaArgs& args, const DeltaTiles& tiles, const Queue& queue,
                      Stream stream);
Status run_chunks(const DeltaArgs& args, const DeltaTiles& tiles, const Queue& queue,
                  Stream stream);

}  // namespace moracle::cuda
