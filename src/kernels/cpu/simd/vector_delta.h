// The gated delta rule over a chunk of tokens of one value head. S is the state before the chunk,
// d_i and β_i are decay and strength of token i, D_ij = d_{j+1} ⋯ d_i, and D_i = d_0 ⋯ d_i:
//   u_i = β_i (v_i - D_i Sᵀ k_i - Σ_j<i D_ij (k_i · k_j) u_j)
//   out_i = D_i Sᵀ q_i + Σ_j≤i D_ij (q_i · k_j) u_j
//   S ← D_last S + Σ_j D_last,j k_j ⊗ u_j
// These are the sums of the rule token by token in another order. All products are tiles in
// registers: several tokens by two vectors of columns, so that a loaded vector of S serves them
// all. D is a product, not an exponential of sums, so that strong decays become 0 without a case.
//
// Where every channel has decays of its own, D is a vector inside of the products q · k and k · k.
// It is part of q, k and these products (delta_channels), and the rest is as with D = 1. No number
// is divided by a decay. Without the delta rule (kSum), u_j is v_j.
#pragma once

#include "kernels/cpu/simd/vector.h"
#include "kernels/cpu/simd/vector_ops.h"

namespace moracle::cpu {
namespace {

constexpr int kDeltaRows = kLanes == 16 ? 8 : 4, kDeltaWide = 2;  // 16 sums, or 8 of 16 registers
constexpr int kDeltaColumns = kDeltaWide * kLanes;
static_assert(kDeltaChunk % kDeltaRows == 0 && kDeltaStrip % kDeltaColumns == 0);
using DeltaTile = Vec[kDeltaRows][kDeltaWide];

/// tile[r] += Σ_j a[r · a_row + j · a_step] · b[j · kDeltaStrip]
MORACLE_VECTOR_INLINE void add_products(const float* a, int64_t a_row, int64_t a_step,
                                        const float* b, int64_t count, DeltaTile& tile) {
  for (int64_t j = 0; j < count; ++j) {
    Vec row[kDeltaWide];
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kDeltaWide; ++v) row[v] = load(b + j * kDeltaStrip + v * kLanes);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kDeltaRows; ++r) {
      const Vec x = splat(a[r * a_row + j * a_step]);
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v) tile[r][v] = multiply_add(x, row[v], tile[r][v]);
    }
  }
}

void delta_products(const float* a, const float* b, int64_t count, int64_t num_rows, float* out) {
  for (int64_t i = 0; i < num_rows; i += kDeltaRows) {
    // Columns past the last row of the tile belong to later tokens.
    for (int64_t at = 0; at < i + kDeltaRows; at += kDeltaColumns) {
      DeltaTile tile = {};
      add_products(a + i * count, count, 1, b + at, count, tile);
      MORACLE_VECTOR_UNROLL
      for (int r = 0; r < kDeltaRows; ++r) {
        MORACLE_VECTOR_UNROLL
        for (int v = 0; v < kDeltaWide; ++v)
          store(out + (i + r) * kDeltaChunk + at + v * kLanes, tile[r][v]);
      }
    }
  }
}

/// The gates and a chunk's products combined.
struct DeltaWeights {
  float known[kDeltaChunk] = {};                  ///< D_i
  float kept[kDeltaChunk] = {};                   ///< D_last,j
  float changes[kDeltaChunk * kDeltaChunk] = {};  ///< -D_ij (k_i · k_j)
  float scores[kDeltaChunk * kDeltaChunk] = {};   ///< D_ij (q_i · k_j)
  float last = 1;                                 ///< D_last
};
void weigh_channels(const DeltaChunk& chunk, DeltaWeights& weights) {
  for (int64_t i = 0; i < chunk.num_tokens; ++i) {
    weights.known[i] = weights.kept[i] = 1;
    const int64_t row = i * kDeltaChunk;
    for (int64_t j = 0; j <= i; j += kLanes) {
      store(weights.changes + row + j, -load(chunk.k_by_k + row + j));
      store(weights.scores + row + j, load(chunk.q_by_k + row + j));
    }
  }
}
void weigh_chunk(const DeltaChunk& chunk, DeltaWeights& weights) {
  if (chunk.rule == DeltaStep::Rule::kByChannel) return weigh_channels(chunk, weights);
  for (int64_t i = 0; i < chunk.num_tokens; ++i) {
    const float decay = chunk.decay[i];
    weights.known[i] = weights.last *= decay;
    for (int64_t j = 0; j < kDeltaChunk; j += kLanes)
      store(weights.kept + j, load(weights.kept + j) * decay);
    weights.kept[i] = 1;
    const int64_t row = i * kDeltaChunk;
    for (int64_t j = 0; j <= i; j += kLanes) {
      const Vec factor = load(weights.kept + j);
      if (chunk.rule == DeltaStep::Rule::kDelta)
        store(weights.changes + row + j, -factor * load(chunk.k_by_k + row + j));
      store(weights.scores + row + j, factor * load(chunk.q_by_k + row + j));
    }
  }
}

/// Rows of u, whose products with the state and with the u of earlier tiles are in `tile`.
MORACLE_VECTOR_INLINE void solve_tile(const DeltaChunk& chunk, const DeltaWeights& weights,
                                      int64_t i, DeltaTile& tile) {
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kDeltaRows; ++r) {
    const float strength = chunk.strength[i + r];
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kDeltaWide; ++v) tile[r][v] *= strength;
    MORACLE_VECTOR_UNROLL
    for (int later = r + 1; later < kDeltaRows; ++later) {
      const Vec factor = splat(weights.changes[(i + later) * kDeltaChunk + i + r]);
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v)
        tile[later][v] = multiply_add(factor, tile[r][v], tile[later][v]);
    }
  }
}

/// The changes of the tokens from i on: rows of u behind the first i.
MORACLE_VECTOR_INLINE void change_tile(const DeltaChunk& chunk, const DeltaWeights& weights,
                                       int64_t i, int64_t at, const float* state, const float* u,
                                       DeltaTile& tile) {
  const int64_t dim = chunk.key_dim, most = chunk.num_tokens - 1;
  const bool sums = chunk.rule == DeltaStep::Rule::kSum;
  if (!sums) add_products(chunk.k + i * dim, dim, 1, state, dim, tile);
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kDeltaRows; ++r) {
    // Rows past the last token change no other row. Their values are those of the last token.
    const int64_t token = i + r < most ? i + r : most;
    const float* const value = chunk.v + token * chunk.v_stride + at;
    const Vec known = splat(-weights.known[i + r]);
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kDeltaWide; ++v) {
      const Vec own = load(value + v * kLanes);
      tile[r][v] = sums ? own : multiply_add(known, tile[r][v], own);
    }
  }
  if (sums) return;
  add_products(weights.changes + i * kDeltaChunk, kDeltaChunk, 1, u, i, tile);
  solve_tile(chunk, weights, i, tile);
}

/// Columns [at, at + kDeltaColumns) of the chunk. `state`: those of the strip.
void run_columns(const DeltaChunk& chunk, const DeltaWeights& weights, int64_t at, float* state) {
  alignas(64) float u[kDeltaChunk * kDeltaStrip];  // rows kDeltaStrip apart, as add_products reads
  const int64_t dim = chunk.key_dim, most = chunk.num_tokens - 1;
  for (int64_t i = 0; i < chunk.num_tokens; i += kDeltaRows) {
    DeltaTile tile = {};
    change_tile(chunk, weights, i, at, state, u, tile);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kDeltaRows; ++r) {
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v)
        store(u + (i + r) * kDeltaStrip + v * kLanes, tile[r][v]);
    }

    DeltaTile out = {};
    add_products(chunk.q + i * dim, dim, 1, state, dim, out);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kDeltaRows; ++r) {
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v) out[r][v] *= weights.known[i + r];
    }
    const float* const scores = weights.scores + i * kDeltaChunk;
    add_products(scores, kDeltaChunk, 1, u, i, out);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kDeltaRows; ++r) {
      Vec sum[kDeltaWide];
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v) sum[v] = out[r][v];
      // Only earlier tokens of the tile: a token's infinity must not reach those before it.
      MORACLE_VECTOR_UNROLL
      for (int j = 0; j <= r; ++j) {
        const Vec score = splat(scores[r * kDeltaChunk + i + j]);
        MORACLE_VECTOR_UNROLL
        for (int v = 0; v < kDeltaWide; ++v)
          sum[v] = multiply_add(score, load(u + (i + j) * kDeltaStrip + v * kLanes), sum[v]);
      }
      if (i + r > most) break;
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v)
        store(chunk.out + (i + r) * chunk.out_stride + at + v * kLanes, sum[v]);
    }
  }

  for (int64_t j = 0; j < chunk.num_tokens; ++j) {
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kDeltaWide; ++v) {
      float* const change = u + j * kDeltaStrip + v * kLanes;
      store(change, load(change) * weights.kept[j]);
    }
  }
  const bool by_channel = chunk.rule == DeltaStep::Rule::kByChannel;
  for (int64_t d = 0; d < dim; d += kDeltaRows) {
    DeltaTile tile;
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kDeltaRows; ++r) {
      const float kept = by_channel ? chunk.kept_state[d + r] : weights.last;
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v)
        tile[r][v] = load(state + (d + r) * kDeltaStrip + v * kLanes) * kept;
    }
    if (by_channel)
      add_products(chunk.kept_keys + d * kDeltaChunk, kDeltaChunk, 1, u, chunk.num_tokens, tile);
    else
      add_products(chunk.k + d, 1, dim, u, chunk.num_tokens, tile);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kDeltaRows; ++r) {
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kDeltaWide; ++v)
        store(state + (d + r) * kDeltaStrip + v * kLanes, tile[r][v]);
    }
  }
}
void delta_chunk(const DeltaChunk& chunk) {
  DeltaWeights weights;
  weigh_chunk(chunk, weights);
  for (int64_t at = 0; at < chunk.value_dim; at += kDeltaColumns) {
    float* const strip = chunk.state + at / kDeltaStrip * kDeltaStrip * chunk.key_dim;
    run_columns(chunk, weights, at, strip + at % kDeltaStrip);
  }
}

/// Row i of both products, columns [at, at + 16), and these columns of kept_keys. Four rows of
/// kept_keys at a time have sums of their own, so that the sums do not wait for each other.
MORACLE_VECTOR_INLINE void channel_products(const DeltaChannels& args, int64_t i, int64_t at) {
  constexpr int kWide = 16 / kLanes, kApart = kWide == 1 ? 4 : 2;
  const int64_t dim = args.key_dim;
  const float *const q = args.q + i * dim, *const k = args.k + i * dim,
                     *const decays = args.decays + i * dim;
  Vec q_sums[kApart][kWide] = {}, k_sums[kApart][kWide] = {};
  for (int64_t d = 0; d < dim; d += kApart) {
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kApart; ++r) {
      float* const kept = args.kept_keys + (d + r) * kDeltaChunk + at;
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kWide; ++v) {
        const Vec key = load(kept + v * kLanes) * decays[d + r];
        store(kept + v * kLanes, key);
        q_sums[r][v] = multiply_add(splat(q[d + r]), key, q_sums[r][v]);
        k_sums[r][v] = multiply_add(splat(k[d + r]), key, k_sums[r][v]);
      }
    }
  }
  MORACLE_VECTOR_UNROLL
  for (int v = 0; v < kWide; ++v) {
    MORACLE_VECTOR_UNROLL
    for (int r = 1; r < kApart; ++r) {
      q_sums[0][v] += q_sums[r][v];
      k_sums[0][v] += k_sums[r][v];
    }
    store(args.q_by_k + i * kDeltaChunk + at + v * kLanes, q_sums[0][v]);
    store(args.k_by_k + i * kDeltaChunk + at + v * kLanes, k_sums[0][v]);
  }
}
void delta_channels(const DeltaChannels& args) {
  const int64_t dim = args.key_dim;
  for (int64_t d = 0; d < dim; ++d) {
    args.kept_state[d] = 1;
    for (int64_t j = 0; j < kDeltaChunk; ++j) args.kept_keys[d * kDeltaChunk + j] = 0;
  }
  for (int64_t i = 0; i < args.num_tokens; ++i) {
    for (int64_t at = 0; at < i; at += 16) channel_products(args, i, at);
    float *const q = args.q + i * dim, *const k = args.k + i * dim;
    const float* const decays = args.decays + i * dim;
    Vec own{};
    for (int64_t d = 0; d < dim; d += kLanes) {
      const Vec q_row = load(q + d), k_row = load(k + d);
      own = multiply_add(q_row, k_row, own);
      const Vec kept = load(args.kept_state + d) * load(decays + d);
      store(args.kept_state + d, kept);
      for (int64_t r = 0; r < kLanes; ++r) args.kept_keys[(d + r) * kDeltaChunk + i] = k[d + r];
      store(q + d, q_row * kept);
      store(k + d, k_row * kept);
    }
    float sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += own[lane];
    args.q_by_k[i * kDeltaChunk + i] = sum;
  }
}

}  // namespace
}  // namespace moracle::cpu
