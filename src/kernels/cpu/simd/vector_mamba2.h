// Mamba-2 (Dao and Gu, "Transformers are SSMs", 2024), token by token and over a chunk of tokens of
// one head. In a chunk S is the state before it, d_i and Δ_i are decay and step of token i,
// D_ij = d_{j+1} ⋯ d_i, and D_i = d_0 ⋯ d_i:
//   u_i = Δ_i x_i
//   out_i = D_i Sᵀ c_i + Σ_j≤i D_ij (c_i · b_j) u_j + skip · x_i
//   S ← D_last S + Σ_j D_last,j b_j ⊗ u_j
// This is the gated delta rule whose changes do not depend on the state, so its tiles serve
// (vector_delta.h). D is a product, not an exponential of sums, so that strong decays become 0
// without a case.
#pragma once

#include "kernels/cpu/simd/vector_delta.h"

namespace moracle::cpu {
namespace {

/// Columns [at, at + kWide vectors) of mamba2_step; `left` > 0: only `left` columns of one vector.
template <int kWide, bool kStreams>
MORACLE_VECTOR_INLINE void mamba2_columns(const Mamba2Step& step, int64_t at, int64_t left) {
  const auto get = [left](const float* p) { return left > 0 ? load_first(p, left) : load(p); };
  const Vec decay = splat(step.decay);
  Vec change[kWide], sum[kWide];
  MORACLE_VECTOR_UNROLL
  for (int v = 0; v < kWide; ++v) {
    const Vec x = get(step.x + at + v * kLanes);
    change[v] = x * step.step;
    sum[v] = x * step.skip;
  }
  for (int64_t i = 0; i < step.state_dim; ++i) {
    const Vec b = splat(step.b[i]), c = splat(step.c[i]);
    const int64_t row = i * step.head_dim + at;
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kWide; ++v) {
      const Vec next = multiply_add(b, change[v], decay * get(step.before + row + v * kLanes));
      sum[v] = multiply_add(c, next, sum[v]);
      if (left > 0)
        store_first(step.after + row, next, left);
      else if (kStreams)
        stream(step.after + row + v * kLanes, next);
      else
        store(step.after + row + v * kLanes, next);
    }
  }
  MORACLE_VECTOR_UNROLL
  for (int v = 0; v < kWide; ++v) {
    if (left > 0)
      store_first(step.out + at, sum[v], left);
    else
      store(step.out + at + v * kLanes, sum[v]);
  }
}
template <bool kStreams>
MORACLE_VECTOR_INLINE void mamba2_all_columns(const Mamba2Step& step) {
  constexpr int kWide = 4;
  int64_t at = 0;
  for (; at + kWide * kLanes <= step.head_dim; at += kWide * kLanes)
    mamba2_columns<kWide, kStreams>(step, at, 0);
  for (; at + kLanes <= step.head_dim; at += kLanes) mamba2_columns<1, kStreams>(step, at, 0);
  if (at < step.head_dim) mamba2_columns<1, kStreams>(step, at, step.head_dim - at);
}
void mamba2_step(const Mamba2Step& step) {
  if (!step.streams) return mamba2_all_columns<false>(step);
  mamba2_all_columns<true>(step);
  stream_fence();
}

/// The decays and a chunk's products combined.
struct Mamba2Weights {
  float known[kDeltaChunk] = {};                 ///< D_i
  float kept[kDeltaChunk] = {};                  ///< D_last,j
  float scores[kDeltaChunk * kDeltaChunk] = {};  ///< D_ij (c_i · b_j)
  float last = 1;                                ///< D_last
};
void weigh_mamba2_chunk(const Mamba2Chunk& chunk, Mamba2Weights& weights) {
  for (int64_t i = 0; i < chunk.num_tokens; ++i) {
    const float decay = chunk.decay[i];
    weights.known[i] = weights.last *= decay;
    for (int64_t j = 0; j < kDeltaChunk; j += kLanes)
      store(weights.kept + j, load(weights.kept + j) * decay);
    weights.kept[i] = 1;
    const int64_t row = i * kDeltaChunk;
    for (int64_t j = 0; j <= i; j += kLanes)
      store(weights.scores + row + j, load(weights.kept + j) * load(chunk.c_by_b + row + j));
  }
}

/// Columns [at, at + kDeltaColumns) of the chunk. `state`: those of the strip.
void run_mamba2_columns(const Mamba2Chunk& chunk, const Mamba2Weights& weights, int64_t at,
                        float* state) {
  alignas(64) float u[kDeltaChunk * kDeltaStrip];  // rows kDeltaStrip apart, as add_products reads
  const int64_t dim = chunk.state_dim, most = chunk.num_tokens - 1;
  const auto each_vector = [&](const auto& run) {
    for (int64_t i = 0; i <= most; ++i) {
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v) run(i, v * kLanes);
    }
  };
  each_vector([&](int64_t i, int64_t v) {
    store(u + i * kDeltaStrip + v, load(chunk.x + i * chunk.x_stride + at + v) * chunk.step[i]);
  });
  for (int64_t i = 0; i <= most; i += kDeltaRows) {
    DeltaTile out = {};
    add_products(chunk.c + i * dim, dim, 1, state, dim, out);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kDeltaRows; ++r) {
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v) out[r][v] *= weights.known[i + r];
    }
    const float* const scores = weights.scores + i * kDeltaChunk;
    add_products(scores, kDeltaChunk, 1, u, i, out);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kDeltaRows; ++r) {
      if (i + r > most) break;
      const float* const x = chunk.x + (i + r) * chunk.x_stride + at;
      Vec sum[kDeltaWide];
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v)
        sum[v] = multiply_add(splat(chunk.skip), load(x + v * kLanes), out[r][v]);
      // Only earlier tokens of the tile: a token's infinity must not reach those before it.
      MORACLE_VECTOR_UNROLL
      for (int j = 0; j <= r; ++j) {
        const Vec score = splat(scores[r * kDeltaChunk + i + j]);
        MORACLE_VECTOR_UNROLL
        for (int v = 0; v < kDeltaWide; ++v)
          sum[v] = multiply_add(score, load(u + (i + j) * kDeltaStrip + v * kLanes), sum[v]);
      }
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v)
        store(chunk.out + (i + r) * chunk.out_stride + at + v * kLanes, sum[v]);
    }
  }

  each_vector([&](int64_t i, int64_t v) {
    float* const change = u + i * kDeltaStrip + v;
    store(change, load(change) * weights.kept[i]);
  });
  for (int64_t d = 0; d < dim; d += kDeltaRows) {
    DeltaTile tile;
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kDeltaRows; ++r) {
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v)
        tile[r][v] = load(state + (d + r) * kDeltaStrip + v * kLanes) * weights.last;
    }
    add_products(chunk.b + d, 1, dim, u, chunk.num_tokens, tile);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kDeltaRows; ++r) {
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v)
        store(state + (d + r) * kDeltaStrip + v * kLanes, tile[r][v]);
    }
  }
}
void mamba2_chunk(const Mamba2Chunk& chunk) {
  Mamba2Weights weights;
  weigh_mamba2_chunk(chunk, weights);
  for (int64_t at = 0; at < chunk.head_dim; at += kDeltaColumns) {
    float* const strip = chunk.state + at / kDeltaStrip * kDeltaStrip * chunk.state_dim;
    run_mamba2_columns(chunk, weights, at, strip + at % kDeltaStrip);
  }
}

}  // namespace
}  // namespace moracle::cpu
