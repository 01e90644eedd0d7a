// The operations around the GEMMs, one implementation per device. All operations are enqueued on a
// stream and take pointers into their device's memory. No operation makes a host decision from
// device data. Activations have the device's activation_dtype(). "Rows" are tokens or (token,
// expert) pairs.
#pragma once

#include "kernels/batch.h"
#include "kernels/device/error_scopes.h"
#include "kernels/kernel_device.h"
#include "moracle/base.h"
#include "moracle/layer.h"
#include "moracle/quant.h"
#include "quant/rows.h"

namespace moracle {

/// Activations of a grouped GEMM.
struct GroupedRows {
  Rows x;                                   ///< [any, K]
  const int32_t* row_index = nullptr;       ///< [num_rows]: row of x to read; null: row r itself
  const int32_t* expert_offsets = nullptr;  ///< [E + 1], device memory; null: all rows, expert 0
  int64_t num_rows = 0;                     ///< an upper bound if there are offsets
  /// Where the plan set `in_chunks`: run only rows [first_row, first_row + num_rows). Rows of x
  /// without row_index, and rows of the output, are counted from first_row.
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

/// One matrix of all adapters of a layer, in device memory, in the activation dtype.
/// Adapter a adds  Δ[r, n] = Σ_j B[a, e, n, j] · Σ_k A[a, e, p(n) · rank + j, k] · x[r, k]  to row
/// r of expert e, where p(n) = n / (N / num_slices). Gate and up are stacked, but each has its own
/// A (Hu et al., "LoRA", 2021; the factor alpha / r is part of B).
struct LoraTable {
  Matrix a;  ///< [adapters * experts * num_slices * rank, K]
  Matrix b;  ///< [adapters * experts * N, rank]
  int64_t num_experts = 0, num_slices = 1, rank = 0, n = 0;
};

struct AttentionShape {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;    ///< of a query and a key
  int64_t value_dim;   ///< of a value and of an output head
  float scale;         ///< most often 1 / sqrt(head_dim)
  int64_t window = 0;  ///< a token sees itself and the window - 1 tokens before it; 0: all
  int64_t chunk = 0;   ///< a token sees only positions of its own chunk of so many; 0: all
  const float* sinks = nullptr;  ///< [num_heads]: a logit without a value that enters each
                                 ///< softmax's denominator; null: none
  /// Sparse attention, without window and chunk: a token at position top_k or later sees only the
  /// positions in its row of `selected` [tokens, top_k], ascending. Earlier tokens see all
  /// positions up to their own. Null: all tokens do.
  const int32_t* selected = nullptr;
  int64_t top_k = 0;
  /// With blocks, `selected` [tokens, selections, top_k / block] holds numbers of blocks of so many
  /// positions. A selection serves num_kv_heads / selections heads of keys.
  int64_t block = 1, selections = 1;
  /// Blocks are pools (GLM-5.3): only those that a token sees as a whole are selected, and the
  /// token also sees the positions behind the last of them. It selects if it sees more than
  /// top_k / block whole blocks.
  bool pools = false;
  LayerCache cache = {};         ///< of this layer in the batch's pages
  bool batch_invariant = false;  ///< a token's bits depend on its sequence alone, not on how
                                 ///< many of its tokens one step takes (a CPU's do so without
                                 ///< bf16_products)
  /// Several tokens of a sequence may be multiplied in bf16: queries, keys, weights and values are
  /// rounded to it, sums are f32. Only CPUs read this; batch_invariant overrides it.
  bool bf16_products = false;

  /// The first position that a token at `position` sees.
  constexpr int64_t first_seen(int64_t position) const {
    const int64_t of_window = window > 0 && position >= window ? position - window + 1 : 0;
    const int64_t of_chunk = chunk > 0 ? position - position % chunk : 0;
    return of_window > of_chunk ? of_window : of_chunk;
  }
  /// Where the selection of a token for a head of keys begins in `selected`.
  constexpr int64_t selection_at(int64_t token, int64_t kv_head) const {
    return (token * selections + kv_head * selections / num_kv_heads) * (top_k / block);
  }
  /// The first position whose token sees a selection, which is also the most positions that it
  /// sees.
  constexpr int64_t first_selecting() const { return pools ? top_k + block - 1 : top_k; }
  /// Positions that a token sees of a selection whose last entry is `last`: the token's own block
  /// ends with the token.
  constexpr int64_t seen_of_selection(int64_t position, int64_t last) const {
    if (pools) return top_k + (position + 1) % block;
    return last == position / block ? top_k - block + position % block + 1 : top_k;
  }
  /// The most positions that a token sees, in contexts of up to `longest`.
  constexpr int64_t most_seen(int64_t longest) const {
    if (selected != nullptr && first_selecting() < longest) longest = first_selecting();
    if (window > 0 && window < longest) longest = window;
    return chunk > 0 && chunk < longest ? chunk : longest;
  }
};
/// Maximum number of splits of a context (split-KV attention).
inline constexpr int64_t kMaxSplits = 64;
/// Bytes of device scratch that attention needs for `num_tokens` tokens: a GPU keeps the partial
/// result of each split there. `activations`: the device's activation dtype.
size_t attend_scratch_bytes(const AttentionShape& shape, int64_t num_tokens, DType activations);

/// The indexer of sparse attention (DeepSeek-AI, "DeepSeek-V3.2", 2025). Its heads share one key.
struct IndexShape {
  int64_t num_heads, head_dim;
  int64_t top_k;     ///< positions that a token sees
  float scale;       ///< multiplies the scores
  LayerCache cache;  ///< of this layer in the batch's pages
  /// Among equal scores the lower position comes first on every device. Otherwise a CPU chooses as
  /// transformers in a step of the same tokens.
  bool batch_invariant = false;
  int64_t block = 1;         ///< of select_blocks: positions of a block
  int64_t local_blocks = 0;  ///< likewise: the last blocks up to the token's own always count
};
/// Bytes of device scratch that select_positions, select_blocks and select_entries need: a GPU
/// keeps the scores of some tokens there. `activations`: the device's activation dtype.
size_t select_scratch_bytes(DType activations);

/// Maximum k of find_top_k.
inline constexpr int64_t kMostTopK = 256;
/// Bytes of device scratch that find_top_k needs.
size_t top_k_scratch_bytes(int64_t rows, int64_t cols, int64_t k, DType activations);

/// The columns of each head that RoPE rotates.
struct RotaryShape {
  int64_t head_dim;          ///< columns of a head
  int64_t num_pairs;         ///< 2 * num_pairs columns rotate,
  int64_t first = 0;         ///< from this column of the head on
  bool interleaved = false;  ///< pairs (2i, 2i + 1) instead of (i, i + num_pairs)
  float factor = 1;          ///< multiplies sine and cosine (YaRN's attention factor)
};

/// Optional RMSNorm per head of queries and keys, then RoPE.
struct QkNormRope {
  const float* q_norm = nullptr;  ///< [head_dim]; null: none
  const float* k_norm = nullptr;  ///< likewise
  float epsilon = 0;
  RotaryShape rotary;
  const float* frequencies = nullptr;  ///< [num_pairs]: radians per position
};

/// Arguments of Ops::add_rms_norm, for kernels that start with it.
struct AddRmsNorm {
  Matrix x, y;
  const float* weight;
  float epsilon;
  Matrix out;
};

/// The input of a linear layer that starts with add_rms_norm.
struct NormedInput {
  AddRmsNorm norm;
  /// Where x + y goes; norm.x and norm.out are then not written. No data: as Ops::add_rms_norm.
  Matrix sum = {};
};

/// What a gate does to the number that multiplies.
enum class Gate : uint8_t { kIdentity, kSigmoid, kSilu, kSoftplus };

/// RMSNorm of each run of `size` columns, then a gate.
struct GatedNorm {
  const float* weight;  ///< [size]
  int64_t size;
  float epsilon;
  Gate function;
};

/// Columns of a matrix that holds `num_heads` heads, `head_dim` columns apart, each with up to
/// three sections side by side. The same columns in another order: the first section of all heads,
/// then the second of all heads, and so on. Without heads, the order is the matrix's own.
struct HeadSplit {
  int64_t num_heads = 0, head_dim = 0;
  int64_t sizes[3] = {};

  /// The matrix's column that is column c of the other order.
  constexpr int64_t from(int64_t c) const {
    if (num_heads == 0) return c;
    int64_t before = 0, section = 0;
    while (section < 2 && c >= num_heads * sizes[section]) {
      c -= num_heads * sizes[section];
      before += sizes[section++];
    }
    return c / sizes[section] * head_dim + before + c % sizes[section];
  }
};

/// A causal convolution of each column over the tokens of its sequence.
struct ConvolutionShape {
  int64_t kernel;        ///< taps; the last one multiplies the token itself
  bool silu;             ///< apply x·σ(x) to the sums
  int64_t state;         ///< byte offset in a sequence's state: the last kernel - 1 rows of x, f32
  HeadSplit split = {};  ///< of x; weights, state and output have the other order
  const float* bias = nullptr;  ///< [columns], added to the sums; null: none
  /// Tokens from one tap to the next; the state has as many rows for each tap before the last.
  /// OpenCL has 1 alone.
  int64_t dilation = 1;
};

/// Gated delta rule. Sizes as in GatedDeltaSpec.
struct GatedDeltaShape {
  int64_t num_key_heads, num_value_heads, key_dim, value_dim;
  /// Columns of `ba`: b of so many value heads, then a of the same heads, and so on.
  int64_t ba_group;
  int64_t state;  ///< byte offset in a sequence's state: f32 [num_value_heads, key_dim, value_dim]
  bool batch_invariant = false;  ///< see AttentionShape
  /// Kimi Delta Attention: each channel of a key has a decay of its own. Column ba_group + head ·
  /// key_dim + i of `ba` is a of channel i, and dt_bias is [num_value_heads, key_dim]. Every value
  /// head has a key head.
  bool by_channel = false;
  /// If not 0, the decay is exp(lower_bound · σ(exp(a_log) · (a + dt_bias))). With by_channel.
  float lower_bound = 0;
};
/// Bytes of device scratch that the gated delta rule needs for `num_tokens` tokens. A GPU keeps the
/// matrices of chunks there. `activations`: the device's activation dtype.
size_t gated_delta_scratch_bytes(const GatedDeltaShape& shape, int64_t num_tokens,
                                 DType activations);
/// Sequences with at most so many tokens in a step need no chunks.
inline constexpr int64_t kRecurrentDeltaTokens = 16;
/// Bytes of one chunk of a value head.
inline constexpr int64_t kDeltaTileBytes = 17216;
/// Columns of the heads that have chunks: of q and k, and of v.
inline constexpr int64_t kDeltaChunkDim = 128;

/// Mamba-2. Sizes as in Mamba2Spec.
struct Mamba2Shape {
  int64_t num_heads, num_groups, head_dim, state_dim;
  float least_step, most_step;  ///< the step size is clamped to them
  int64_t state;  ///< byte offset in a sequence's state: f32 [num_heads, state_dim, head_dim]
  bool batch_invariant = false;  ///< see AttentionShape
};
/// Sequences with at most so many tokens in a step need no chunks on a GPU.
inline constexpr int64_t kRecurrentMambaTokens = 16;
/// Lightning attention. Sizes as in LightningSpec.
struct LightningShape {
  int64_t num_heads, head_dim;
  int64_t state;  ///< byte offset in a sequence's state: f32 [num_heads, head_dim, head_dim]
  bool batch_invariant = false;  ///< see AttentionShape
};

/// Hash layers (DeepSeek-V4): the id of a token chooses its experts.
struct TokenRoutes {
  const int32_t* experts;  ///< [vocab_size, top_k]
};

/// Compressed attention (DeepSeek-AI, "DeepSeek-V4", 2026): `rate` tokens of a sequence become one
/// entry, Σ softmax(gate + bias) · value over its tokens, by column, then RMSNorm and RoPE at the
/// position of the first one.
struct CompressShape {
  int64_t rate;  ///< tokens of an entry
  int64_t dim;   ///< columns of an entry
  /// Two series: an entry sums the first one over the entry before it and the second one over its
  /// own tokens, 2 · rate in all. Rows have the first series, then the second.
  bool overlap;
  float epsilon;            ///< of the norm
  RotaryShape rotary;       ///< of an entry
  LayerCache cache;         ///< of this layer in the batch's pages
  bool index_keys = false;  ///< entries go to LayerCache::entry_keys, else to LayerCache::entries
  int64_t state = 0;        ///< byte offset in a sequence's state, see compress_state_bytes
  bool average = false;     ///< the mean of the values: rows have no gates, and there is no bias

  constexpr int64_t columns() const { return overlap ? 2 * dim : dim; }  ///< of values
  constexpr int64_t rows() const { return overlap ? 2 * rate : rate; }   ///< that an entry sums
  constexpr int64_t row_size() const { return average ? columns() : 2 * columns(); }
};
/// Weights of a compressor, in device memory.
struct CompressWeights {
  const float* bias;         ///< [rate, columns()], added to gates; null for an average
  const float* norm;         ///< [dim]; null: no norm
  const float* frequencies;  ///< radians per position
};
/// f32 [rows(), row_size()]: the last values and gates; position p is row p % rows().
constexpr int64_t compress_state_bytes(const CompressShape& shape) {
  return shape.rows() * shape.row_size() * static_cast<int64_t>(sizeof(float));
}

/// The indexer of compressed attention: its heads share one key for each entry.
struct EntryIndexShape {
  int64_t num_heads, head_dim;
  int64_t top_k;                 ///< entries that a token sees
  int64_t rate;                  ///< positions of an entry
  float scale;                   ///< multiplies the scores
  LayerCache cache;              ///< of this layer in the batch's pages
  bool batch_invariant = false;  ///< see IndexShape
};

/// Attention over the last positions and over entries. All heads share one vector for each, which
/// is key and value.
struct CompressedShape {
  int64_t num_heads, head_dim;
  float scale;
  int64_t window;      ///< a token sees itself and the window - 1 tokens before it
  const float* sinks;  ///< see AttentionShape
  /// A token at position p also sees entries [0, (p + 1) / rate); 0: no entries.
  int64_t rate = 0;
  /// If there are more than top_k of them, only those in its row of `selected` [tokens, top_k],
  /// ascending. Null: all.
  const int32_t* selected = nullptr;
  int64_t top_k = 0;
  LayerCache cache = {};  ///< of this layer in the batch's pages
};

/// N-grams of token ids, hashed to rows of a table (Qwen3.8-Flash-Next). Pointers are to device
/// memory.
struct NgramShape {
  int64_t size;   ///< tokens of the longest n-gram; the shortest one has 2
  int64_t heads;  ///< of each length
  const uint64_t *multipliers, *sizes, *offsets;  ///< see NgramDescription
  int32_t boundary;  ///< ends a text, and stands for all tokens before it
  int64_t state;     ///< byte offset in a sequence's state: i32 [size - 1], the last tokens
};

/// Hyper-connections with doubly stochastic mixing (Zhu et al., "Hyper-Connections", 2024; Xie et
/// al., "mHC", 2025): the residual stream is several streams side by side in a row.
struct HyperShape {
  int64_t num_streams;
  int64_t iterations = 0;  ///< of Sinkhorn and Knopp's normalization
  float epsilon = 0;       ///< added to weights and to sums that divide
  float norm_epsilon = 0;  ///< of RMSNorm over all streams
};
/// With n streams: rows of `projection` and numbers of `base` are those of the n input weights,
/// then the n output weights, then the mixing matrix [n, n]. `scale` has a number for each of the
/// three. At the end of a model there are only input weights, or none: the mean of the streams.
struct HyperWeights {
  const float* projection;  ///< [n + n + n², n · hidden_size]; null: the mean
  const float* base;
  const float* scale;
};
/// Floats that collapse_streams keeps for expand_streams, of one token: output weights, then the
/// mixing matrix.
constexpr int64_t hyper_floats(int64_t num_streams) {
  return num_streams + num_streams * num_streams;
}

/// Positions per page of keys and values, as suits the attention of the platform's devices.
int64_t cache_page(Platform platform);

class Ops {
 public:
  virtual ~Ops() = default;

  /// The layers that errors of this device's kernels name.
  virtual ErrorScopes& error_scopes() = 0;

  /// True if a page is [kv_heads, page, head_dim], so that a head's positions are adjacent; else it
  /// is [page, kv_heads, head_dim]. The same holds for values.
  virtual bool cache_by_head() const { return false; }

  // Around the experts.

  /// Any float type to any other; columns of `to` past from.cols become 0.
  virtual Status convert(const Matrix& from, const Matrix& to, Stream) = 0;
  /// Quantizes each row by `key` (see docs/numerics.md). Columns of `to` past from.cols become 0.
  /// If `to` holds floats, they are the values of the codes, scale included.
  virtual Status quantize(const Matrix& from, const QuantKey& key, const Rows& to, Stream) = 0;
  /// Row r of `to` is row row_index[r] of `from` (or r itself), quantized with its expert's stored
  /// scale, scales[e], in device memory. Otherwise as quantize.
  virtual Status quantize_static(const Matrix& from, const int32_t* row_index,
                                 const int32_t* expert_offsets, int64_t num_experts,
                                 const float* scales, const QuantKey& key, const Rows& to,
                                 Stream) = 0;
  /// Reorders each row's columns by its expert. Column j of row r of `to`, counted from
  /// rows.first_row, is column order[j] of the row that r reads. Columns of `to` past num_cols
  /// become 0. Scales are copied. Both sides have one type, of 8, 16 or 32 bits.
  virtual Status gather_columns(const GroupedRows& rows, const ColumnOrders& orders, const Rows& to,
                                Stream) = 0;
  /// Scores, chooses and weighs: logits [tokens, num_experts] → ids, weights [tokens, top_k],
  /// largest first; equal scores: lower id first. `correction_bias` [num_experts] if the routing
  /// has one. Overwrites the logits. Errors: groups that do not divide, fewer experts to choose
  /// from than top_k.
  virtual Status route(const Matrix& logits, const Routing& routing, const float* correction_bias,
                       int64_t top_k, int32_t* topk_ids, float* topk_weights, Stream) = 0;
  /// The experts of each token are those of its id in `table`; their weights are their scores,
  /// normalized and scaled as the routing says. Overwrites the logits.
  virtual Status route_by_token(const Matrix& logits, const Routing& routing,
                                const TokenRoutes& table, const int32_t* token_ids, int64_t top_k,
                                int32_t* topk_ids, float* topk_weights, Stream);
  /// Sorts (token, expert) pairs by expert, stably. `expert_map` [num_experts] maps ids to local
  /// numbers below num_local; null: they are the same. Ids of -1 and experts that are not local get
  /// no row. Ids below -1, or not below num_experts, get no row either, and the next synchronize()
  /// reports them.
  virtual Status plan_rows(const int32_t* topk_ids, int64_t num_tokens, int64_t top_k,
                           int64_t num_experts, const int32_t* expert_map, int64_t num_local,
                           const RowPlan& plan, Stream) = 0;
  /// The same for activations that arrive sorted: expert e's rows are e * max_tokens + i, for
  /// i < counts[e]. Counts are clamped to [0, max_tokens], and the next synchronize() reports it.
  virtual Status plan_batched_rows(const int32_t* counts, int64_t num_experts, int64_t max_tokens,
                                   const RowPlan& plan, Stream) = 0;
  /// to[t] = weights[t] · from[t], both of the activation dtype.
  virtual Status scale_rows(const Matrix& from, const float* weights, const Matrix& to, Stream) = 0;
  /// Adds each row's adapter to y (see LoraTable). Row r of y belongs to token t = row_token[r],
  /// has adapter lora_ids[t] and reads row row_index[r] (or r itself) of x. Without offsets and
  /// row_token, all rows belong to expert 0, and row r to token r. Ids of -1 add nothing.
  /// Ids not below `adapters` add nothing either, and the next synchronize() reports them. A Δ of 0
  /// changes no bit.
  virtual Status add_lora(const Matrix& x, const int32_t* row_index, const RowPlan& rows,
                          const int32_t* lora_ids, int64_t adapters, const LoraTable& table,
                          const Matrix& y, Stream) = 0;
  /// gate_up [rows, 2I] (gate, then up; [rows, I] without a gate) → out [rows, I or more]. Further
  /// columns become 0. Errors: an activation that needs a limit and has none.
  virtual Status activate(const ActivationSpec& activation, int64_t intermediate_size,
                          const Matrix& gate_up, const Matrix& out, Stream) = 0;
  /// out[t] = Σ_j weights[t, j] · y[slot_row[t, j]], in the order of the rows, in f32. Slots
  /// without a row add 0. Null weights: each is 1.
  virtual Status combine(const Matrix& y, const int32_t* slot_row, const float* topk_weights,
                         int64_t top_k, const Matrix& out, Stream) = 0;

  /// Takes the choices of experts that return their input, those from num_experts on: their ids
  /// become -1, and sums[t] is the sum of their weights. ids, weights [num_tokens, top_k].
  virtual Status take_identity(int32_t* ids, const float* weights, int64_t num_tokens,
                               int64_t top_k, int64_t num_experts, float* sums, Stream) = 0;
  /// weights[i] *= scales[ids[i]], i < count; ids of -1 change nothing.
  virtual Status scale_by_expert(const int32_t* ids, int64_t count, const float* scales,
                                 float* weights, Stream) = 0;

  /// own [num_tokens, top_k]: of experts with several copies, one copy keeps the id and the others
  /// get -1. Copy (t + expert) mod number keeps it for row t. `copies` [2, num_experts]: the number
  /// of copies, and which one is here (-1: none). `own` may be `ids`.
  virtual Status keep_own(const int32_t* ids, int64_t num_tokens, int64_t top_k,
                          const int32_t* copies, int64_t num_experts, int32_t* own, Stream) = 0;

  // Around the layers of a model.

  /// out[t] = table[ids[t]], of floats; CPUs take blocks of GGUF, too. The caller has checked the
  /// ids.
  virtual Status embed(const TensorView& table, const int32_t* ids, const Matrix& out, Stream) = 0;
  /// out = x / sqrt(mean(x²) + epsilon) · weight, over each run of weight_size columns.
  virtual Status rms_norm(const Matrix& x, const float* weight, int64_t weight_size, float epsilon,
                          const Matrix& out, Stream) = 0;
  /// LayerNorm of each row: out = (x - mean) / sqrt(variance + epsilon) · weight + bias. x and out
  /// may be the same.
  virtual Status layer_norm(const Matrix& x, const float* weight, const float* bias, float epsilon,
                            const Matrix& out, Stream) = 0;
  /// x += y
  virtual Status add(const Matrix& x, const Matrix& y, Stream) = 0;
  /// x += y, then out = rms_norm of the rows of x.
  virtual Status add_rms_norm(const Matrix& x, const Matrix& y, const float* weight, float epsilon,
                              const Matrix& out, Stream);
  /// Rotates each head by its row's position, positions[r].
  virtual Status rotate(const Matrix& x, const RotaryShape& shape, const float* frequencies,
                        const int32_t* positions, Stream) = 0;
  /// Multiplies each row by 1 + strength · log(1 + floor((positions[r] + offset) / scale)).
  virtual Status temper(const Matrix& x, const int32_t* positions, int32_t offset, float scale,
                        float strength, Stream) = 0;
  /// For each of `num_heads` heads, copies `count` columns: from head · from_dim of `from` to
  /// head · to_dim of `to`. A from_dim of 0 copies the same columns to every head.
  virtual Status copy_heads(const Matrix& from, int64_t from_dim, const Matrix& to, int64_t to_dim,
                            int64_t num_heads, int64_t count, Stream) = 0;
  /// Appends k [tokens, kv_heads * head_dim] and v [tokens, kv_heads * value_dim] to the caches.
  /// Errors: a number that f16 cannot hold, in a cache of f16 (on a GPU: at the next
  /// synchronize()).
  virtual Status append(const Matrix& k, const Matrix& v, const Batch& batch,
                        const LayerCache& cache, Stream) = 0;
  /// Appends index keys k [tokens, head_dim] to their cache. Errors: those of append.
  Status append_index(const Matrix& k, const Batch& batch, const LayerCache& cache, Stream);
  /// For each token at a position p >= top_k: the top_k positions j in [0, p] with the largest
  ///   scale · Σ_h weights[h] · max(0, q_h · k_j)
  /// q [tokens, heads * head_dim], weights [tokens, heads], selected [tokens, top_k] ascending.
  /// NaN comes before all numbers; IndexShape says which of equal scores. Rows of earlier tokens
  /// are not written. `scratch`: select_scratch_bytes.
  virtual Status select_positions(const Matrix& q, const Matrix& weights, const Batch& batch,
                                  const IndexShape& shape, int32_t* selected, std::byte* scratch,
                                  Stream) = 0;
  /// Block-sparse attention (MiniMax-M3): for each token at a position p >= top_k and each head h,
  /// the top_k / block blocks b <= p / block with the largest max of q_h · k_j over positions j <=
  /// p of the block. The scores of the last local_blocks blocks are infinite. selected [tokens,
  /// heads, top_k / block] ascending. Otherwise as select_positions.
  virtual Status select_blocks(const Matrix& q, const Batch& batch, const IndexShape& shape,
                               int32_t* selected, std::byte* scratch, Stream) = 0;
  /// Applies QkNormRope to the heads of q and k in place, then appends k and v.
  virtual Status rope_and_append(const Matrix& q, const Matrix& k, const Matrix& v,
                                 const QkNormRope& rope, const Batch& batch,
                                 const LayerCache& cache, Stream);
  /// out = softmax(q kᵀ · scale, causal) v over the caches, heads side by side. The caches must
  /// already hold the batch's own keys and values. `scratch`: at least attend_scratch_bytes for
  /// these tokens.
  virtual Status attend(const Matrix& q, const Batch& batch, const AttentionShape& shape,
                        const Matrix& out, std::byte* scratch, Stream) = 0;
  /// x = cap · tanh(x / cap), of f32.
  virtual Status cap(const Matrix& x, float cap, Stream) = 0;
  /// x[r, c] becomes negative infinity where bit c of row r of `allowed` is 0, of f32. A row of
  /// `allowed` has ceil(columns / 32) words; bit c is bit c % 32 of word c / 32.
  virtual Status keep_allowed(const Matrix& x, const uint32_t* allowed, Stream) = 0;
  /// The k largest of each row of f32 `numbers`, with their columns: ids, values [rows, k]. Order:
  /// larger first, the lower column first among equals, NaN before all numbers. `scratch`:
  /// top_k_scratch_bytes. Errors: k < 1, k > columns or k > kMostTopK.
  virtual Status find_top_k(const Matrix& numbers, int64_t k, int32_t* ids, float* values,
                            std::byte* scratch, Stream) = 0;

  // Layers with gates or a recurrent state.

  /// For each of `num_heads` heads: x[head · x_dim + i] *= f(by[head · by_dim + i]), i < count.
  virtual Status gate(const Matrix& x, int64_t x_dim, const Matrix& by, int64_t by_dim,
                      int64_t num_heads, int64_t count, Gate function, Stream) = 0;
  /// One gate for each head: x[head · head_dim + i] *= f(by[head]), i < head_dim, for the heads of
  /// x.
  virtual Status gate_heads(const Matrix& x, const Matrix& by, int64_t head_dim, Gate function,
                            Stream) = 0;
  /// GatedNorm: out = rms_norm(x) · f(by). `by` holds the factors of `count` columns of x at a
  /// time, by_dim columns apart. x and out may be the same.
  virtual Status norm_and_gate(const Matrix& x, const GatedNorm& norm, const Matrix& by,
                               int64_t by_dim, int64_t count, const Matrix& out, Stream);
  /// out[t, c] = Σ_j weight[j, c] · x[t - kernel + 1 + j, c], c in the order of the output (see
  /// HeadSplit). Rows before the step's come from the sequence's state; the state after the step
  /// is written. x and out must not overlap.
  virtual Status convolve(const Matrix& x, const float* weight, const ConvolutionShape& shape,
                          const Batch& batch, const Matrix& out, Stream) = 0;
  /// Per value head, from the state S [key_dim, value_dim] before the step, token by token:
  ///   q ← q / |q| / √key_dim, k ← k / |k|     with |x|² + 1e-6
  ///   S ← exp(-exp(a_log) · softplus(a + dt_bias)) · S
  ///   S ← S + k ⊗ σ(b) · (v - Sᵀ k)
  ///   out = Sᵀ q
  /// qkv [tokens, (2 · num_key_heads) · key_dim + num_value_heads · value_dim], ba [tokens,
  /// 2 · num_value_heads], out [tokens, num_value_heads · value_dim]. `scratch`: at least
  /// gated_delta_scratch_bytes for these tokens.
  virtual Status gated_delta(const Matrix& qkv, const Matrix& ba, const float* a_log,
                             const float* dt_bias, const GatedDeltaShape& shape, const Batch& batch,
                             const Matrix& out, std::byte* scratch, Stream) = 0;
  /// Per head, from the state S [state_dim, head_dim] before the step, token by token:
  ///   Δ ← clamp(softplus(dt + dt_bias), least_step, most_step)
  ///   S ← exp(-exp(a_log) · Δ) · S + b ⊗ Δ x
  ///   out = Sᵀ c + d · x
  /// xbc [tokens, num_heads · head_dim + 2 · num_groups · state_dim]: x of all heads, then b and
  /// c of all groups, each of which serves num_heads / num_groups heads. dt [tokens, num_heads],
  /// a_log, dt_bias, d [num_heads], out [tokens, num_heads · head_dim].
  virtual Status mamba2(const Matrix& xbc, const Matrix& dt, const float* a_log,
                        const float* dt_bias, const float* d, const Mamba2Shape& shape,
                        const Batch& batch, const Matrix& out, Stream) = 0;
  /// x ← x · silu(by), then RMSNorm of each run of `size` columns, with a weight for each column
  /// of x. `by` has the columns of x.
  virtual Status gate_and_norm(const Matrix& x, const Matrix& by, const float* weight, int64_t size,
                               float epsilon, Stream) = 0;
  /// Per head, from the state S [head_dim, head_dim] before the step, token by token, with q, k and
  /// v after x·σ(x):
  ///   S ← decays[head] · S + k ⊗ v
  ///   out = Sᵀ q
  /// qkv [tokens, 3 · num_heads · head_dim]: q, k and v of one head, then those of the next; out
  /// [tokens, num_heads · head_dim].
  virtual Status lightning(const Matrix& qkv, const float* decays, const LightningShape& shape,
                           const Batch& batch, const Matrix& out, Stream) = 0;

  // Compressed attention and hyper-connections. They, and route_by_token, return an error
  // (kUnsupported) on a device without kernels for them; plans refuse such devices before.

  /// Appends the entries that this step completes. rows [tokens, row_size()]: values, then gates.
  /// Reads and writes the state of each sequence. Errors: those of append.
  virtual Status compress(const Matrix& rows, const CompressWeights& weights,
                          const CompressShape& shape, const Batch& batch, Stream);
  /// For each token that sees more than top_k entries: those with the largest
  ///   scale · Σ_h weights[h] · max(0, q_h · k_e)
  /// Otherwise as select_positions.
  virtual Status select_entries(const Matrix& q, const Matrix& weights, const Batch& batch,
                                const EntryIndexShape& shape, int32_t* selected, std::byte* scratch,
                                Stream);
  /// out = softmax(q kᵀ · scale) k over what CompressedShape says, heads side by side. The caches
  /// already hold the batch's own positions and entries.
  virtual Status attend_compressed(const Matrix& q, const Batch& batch,
                                   const CompressedShape& shape, const Matrix& out, Stream);

  /// With x = streams / sqrt(mean(streams²) + norm_epsilon) · projectionᵀ of a token:
  ///   out = Σ_i (σ(x_i · scale_0 + base_i) + epsilon) · stream_i
  /// and, unless `kept` is null, [tokens, hyper_floats]:
  ///   output weights 2 · σ(x · scale_1 + base); mixing matrix softmax of each row of x · scale_2 +
  ///   base, plus epsilon, then divided in turn by the sums of its columns and of its rows
  /// streams [tokens, n · hidden_size], out [tokens, hidden_size]. Without a projection: the mean
  /// of the streams.
  virtual Status collapse_streams(const Matrix& streams, const HyperWeights& weights,
                                  const HyperShape& shape, const Matrix& out, float* kept, Stream);
  /// stream_k ← output weight_k · branch + Σ_i mixing[i, k] · stream_i
  virtual Status expand_streams(const Matrix& streams, const Matrix& branch, int64_t num_streams,
                                const float* kept, Stream);

  // Gated residual streams and n-grams, likewise.

  /// stream_k ← stream_k + 2 · σ(weights[t, k] / n) · branch; weights [tokens, n].
  virtual Status inject_streams(const Matrix& streams, const Matrix& branch, const Matrix& weights,
                                Stream);
  /// rows [tokens, (size - 1) · heads]: for each head of n-grams of n = 2 … size tokens its offset,
  /// plus the exclusive or of id_j · multiplier_j, j < n, modulo its size. id_j is the j-th token
  /// before this one, or the boundary if one of the tokens between is.
  virtual Status hash_ngrams(const NgramShape& shape, const Batch& batch, int32_t* rows, Stream);
  /// out_k = σ(f(key_k · query_k / √columns)) · value for each stream, f(x) = sign(x) √max(|x|,
  /// 1e-6). keys, queries and out have all streams side by side.
  virtual Status gate_streams(const Matrix& keys, const Matrix& queries, const Matrix& value,
                              const Matrix& out, Stream);
};

}  // namespace moracle
