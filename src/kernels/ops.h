// The operations around the GEMMs, one implementation per device. All are enqueued on a stream and
// take pointers into their device's memory; none decides anything on the host from device data.
// Activations are of the device's activation_dtype(); "rows" are tokens or (token, expert) pairs.
#pragma once

#include "kernels/batch.h"
#include "moracle/base.h"
#include "moracle/checkpoint.h"
#include "moracle/device.h"
#include "moracle/quant.h"
#include "quant/rows.h"

namespace moracle {

/// Activations of a grouped GEMM.
struct GroupedRows {
  Rows x;                                   ///< [any, K]
  const int32_t* row_index = nullptr;       ///< [num_rows]: which row of x; nothing: row r itself
  const int32_t* expert_offsets = nullptr;  ///< [E + 1], device memory; nothing: all rows, expert 0
  int64_t num_rows = 0;                     ///< upper bound where there are offsets
  /// Where the plan said `in_parts`: only rows [first_row, first_row + num_rows). Those of x
  /// without row_index, and those of what comes out, are counted from there.
  int64_t first_row = 0;
};

/// The order of each expert's columns, in device memory.
struct ColumnOrders {
  const std::byte* first = nullptr;  ///< i32 [num_cols] of expert 0
  int64_t stride = 0;                ///< bytes from one expert's order to the next
  int64_t num_cols = 0;
  int64_t num_experts = 0;

  const int32_t* of(int64_t e) const {
    return reinterpret_cast<const int32_t*>(first + e * stride);
  }
};

/// One matrix of all adapters that a layer holds, in device memory, of the activation dtype.
/// Adapter a adds  Δ[r, n] = Σ_j B[a, e, n, j] · Σ_k A[a, e, p(n) · rank + j, k] · x[r, k]  to row
/// r of expert e, where p(n) = n / (N / parts): gate and up are stacked, but have each their own A
/// (Hu et al., "LoRA", 2021; the factor alpha / r is part of B).
struct LoraTable {
  Matrix a;  ///< [adapters * experts * parts * rank, K]
  Matrix b;  ///< [adapters * experts * N, rank]
  int64_t num_experts = 0, parts = 1, rank = 0, n = 0;
};

struct AttentionShape {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;              ///< of a query and a key
  int64_t value_dim;             ///< of a value and of what comes out
  float scale;                   ///< most often 1 / sqrt(head_dim)
  int64_t window = 0;            ///< a token sees itself and window - 1 before it; 0: all
  const float* sinks = nullptr;  ///< [num_heads]: a logit in each softmax's denominator that has
                                 ///< no value; nothing: none
  LayerCache cache = {};         ///< of this layer in the batch's pages
  bool batch_invariant = false;  ///< a token's bits follow from its sequence alone, not from how
                                 ///< many of its tokens a step takes either (a CPU's always do)
};
/// Parts that a context is shared out in, at most.
inline constexpr int64_t kAttendParts = 64;
/// What attention needs beside its tensors, of the device's memory, for as many tokens: a GPU
/// shares contexts out and keeps what comes of each part here. `activations`: the device's.
size_t attend_scratch_bytes(const AttentionShape& shape, int64_t num_tokens, DType activations);

/// Most numbers that find_top_k finds of a row.
inline constexpr int64_t kMostTopK = 256;
/// What it needs beside its tensors, of the device's memory.
size_t top_k_scratch_bytes(int64_t rows, int64_t cols, int64_t k, DType activations);

/// Which columns of each head turn with the position.
struct RotaryShape {
  int64_t head_dim;          ///< columns of a head
  int64_t num_pairs;         ///< 2 * num_pairs columns turn,
  int64_t first = 0;         ///< from this one of the head on
  bool interleaved = false;  ///< pairs (2i, 2i + 1) of them instead of (i, i + num_pairs)
  float factor = 1;          ///< multiplies sine and cosine (YaRN's attention factor)
};

/// What becomes of the heads of queries and keys before attention.
struct QkNormRope {
  const float* q_norm = nullptr;  ///< [head_dim]; nothing: none
  const float* k_norm = nullptr;  ///< likewise
  float epsilon = 0;
  RotaryShape rotary;
  const float* frequencies = nullptr;  ///< [num_pairs]: radians per position
};

class Ops {
 public:
  virtual ~Ops() = default;

  /// Positions of a page of keys and values, as suits this device's attention.
  virtual int64_t cache_page() const = 0;

  // Around the experts.

  /// Any float type to any other; columns of `to` past from.cols become 0.
  virtual Status convert(const Matrix& from, const Matrix& to, Stream) = 0;
  /// Quantizes each row by `key` (see docs/numerics.md); columns of `to` past from.cols become 0.
  /// Where `to` is of floats, they are the values that the codes stand for, scale included.
  virtual Status quantize(const Matrix& from, const QuantKey& key, const Rows& to, Stream) = 0;
  /// Row r of `to` is row row_index[r] of `from` (or r itself) quantized with the stored scale of
  /// its expert, scales[e], in device memory. Otherwise as quantize.
  virtual Status quantize_static(const Matrix& from, const int32_t* row_index,
                                 const int32_t* expert_offsets, int64_t num_experts,
                                 const float* scales, const QuantKey& key, const Rows& to,
                                 Stream) = 0;
  /// Each row with its columns in the order of its expert: column j of row r of `to`, counted from
  /// rows.first_row, is column order[j] of the row that r reads; columns of `to` past num_cols
  /// become 0; scales go along. Values are of one type, of 8, 16 or 32 bits.
  virtual Status gather_columns(const GroupedRows& rows, const ColumnOrders& orders, const Rows& to,
                                Stream) = 0;
  /// Scores, picks and weighs: logits [tokens, num_experts] → ids, weights [tokens, top_k], largest
  /// first; equal scores: lower id first. `correction_bias` [num_experts] where the routing has
  /// one. Overwrites the logits. Errors: groups that do not divide, fewer experts than top_k to
  /// choose from.
  virtual Status route(const Matrix& logits, const Routing& routing, const float* correction_bias,
                       int64_t top_k, int32_t* topk_ids, float* topk_weights, Stream) = 0;
  /// Sorts (token, expert) pairs by expert, stably. `expert_map` [num_experts] turns ids into local
  /// numbers below num_local; nothing: they are the same. Ids of -1 and experts that are elsewhere
  /// get no row; ids below -1, or not below num_experts, neither, and the next synchronize() says
  /// so.
  virtual Status plan_rows(const int32_t* topk_ids, int64_t num_tokens, int64_t top_k,
                           int64_t num_experts, const int32_t* expert_map, int64_t num_local,
                           const RowPlan& plan, Stream) = 0;
  /// The same for activations that come sorted: expert e's are rows e * max_tokens + i, i below
  /// counts[e]. Counts outside [0, max_tokens] are cut to it, and the next synchronize() says so.
  virtual Status plan_batched_rows(const int32_t* counts, int64_t num_experts, int64_t max_tokens,
                                   const RowPlan& plan, Stream) = 0;
  /// to[t] = weights[t] · from[t], both of the activation dtype.
  virtual Status scale_rows(const Matrix& from, const float* weights, const Matrix& to, Stream) = 0;
  /// Adds each row's adapter to y (see LoraTable): row r of y, which is token t = row_token[r]'s,
  /// has adapter lora_ids[t] and reads row row_index[r] (or r itself) of x. Ids of -1 add nothing;
  /// ids not below `adapters` neither, and the next synchronize() says so. A Δ of 0 changes no bit.
  virtual Status add_lora(const Matrix& x, const int32_t* row_index, const RowPlan& rows,
                          const int32_t* lora_ids, int64_t adapters, const LoraTable& table,
                          const Matrix& y, Stream) = 0;
  /// gate_up [rows, 2I] (gate, then up; [rows, I] without a gate) → out [rows, I or more]; further
  /// columns become 0. Errors: an activation that needs a limit and has none.
  virtual Status activate(const ActivationSpec& activation, int64_t intermediate_size,
                          const Matrix& gate_up, const Matrix& out, Stream) = 0;
  /// out[t] = Σ_j weights[t, j] · y[slot_row[t, j]], in the order of the rows, in f32; slots
  /// without a row add 0. No weights: each is 1.
  virtual Status combine(const Matrix& y, const int32_t* slot_row, const float* topk_weights,
                         int64_t top_k, const Matrix& out, Stream) = 0;

  // Around the layers of a model.

  /// out[t] = table[ids[t]]; the ids have been checked.
  virtual Status embed(const TensorView& table, const int32_t* ids, const Matrix& out, Stream) = 0;
  /// out = x / sqrt(mean(x²) + epsilon) · weight, over each run of weight_size columns.
  virtual Status rms_norm(const Matrix& x, const float* weight, int64_t weight_size, float epsilon,
                          const Matrix& out, Stream) = 0;
  /// x += y
  virtual Status add(const Matrix& x, const Matrix& y, Stream) = 0;
  /// x += y, then out = rms_norm of the rows of x.
  virtual Status add_rms_norm(const Matrix& x, const Matrix& y, const float* weight, float epsilon,
                              const Matrix& out, Stream);
  /// Rotates each head by its row's position, positions[r].
  virtual Status rotate(const Matrix& x, const RotaryShape& shape, const float* frequencies,
                        const int32_t* positions, Stream) = 0;
  /// For each of `num_heads` heads, `count` columns: those of `to` from head · to_dim on become
  /// those of `from` from head · from_dim on. A from_dim of 0 gives every head the same ones.
  virtual Status copy_heads(const Matrix& from, int64_t from_dim, const Matrix& to, int64_t to_dim,
                            int64_t num_heads, int64_t count, Stream) = 0;
  /// Appends k [tokens, kv_heads * head_dim] and v [tokens, kv_heads * value_dim] to the caches.
  /// Errors, on a GPU of the next synchronize(): a number that a cache of f16 has not.
  virtual Status append(const Matrix& k, const Matrix& v, const Batch& batch,
                        const LayerCache& cache, Stream) = 0;
  /// Norms and rotates the heads of q and k in place, then appends k and v.
  virtual Status rope_and_append(const Matrix& q, const Matrix& k, const Matrix& v,
                                 const QkNormRope& turn, const Batch& batch,
                                 const LayerCache& cache, Stream);
  /// out = softmax(q kᵀ · scale, causal) v over the caches, which hold the batch's own keys and
  /// values by now; heads side by side. `scratch`: attend_scratch_bytes for these tokens, or more.
  virtual Status attend(const Matrix& q, const Batch& batch, const AttentionShape& shape,
                        const Matrix& out, std::byte* scratch, Stream) = 0;
  /// The k largest of each row of f32 `numbers`, with their columns: ids, values [rows, k]; larger
  /// first, the lower column first among equals, NaN before everything. `scratch`:
  /// top_k_scratch_bytes.
  /// Errors: a k below 1, or above the columns or kMostTopK.
  virtual Status find_top_k(const Matrix& numbers, int64_t k, int32_t* ids, float* values,
                            std::byte* scratch, Stream) = 0;
};

}  // namespace moracle
