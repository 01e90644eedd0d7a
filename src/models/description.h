// A model described from its checkpoint: every tensor is named, checked and claimed, none is read.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "moracle/checkpoint.h"
#include "moracle/oracle.h"

namespace moracle {

/// Sizes of a decoder: norm → attention → norm → experts or MLP, layer after layer.
struct DecoderSpec {
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;
  int64_t max_context = 0;
  float norm_epsilon = 1e-6f;
  Activation activation = Activation::kSilu;  ///< of dense MLPs
  float norm_offset = 0;                      ///< added to the stored weights of RMSNorm
  bool layer_norm = false;                    ///< LayerNorm in place of RMSNorm
  bool norm_bias = true;                      ///< LayerNorm has biases
  float embedding_scale = 1;                  ///< multiplies the rows of the embedding
  /// LongRoPE: sequences of more tokens use Rotary::long_frequencies and multiply queries and keys
  /// by long_factor; shorter ones use Rotary::frequencies and short_factor.
  int64_t short_context = 0;  ///< 0: no LongRoPE
  float short_factor = 1, long_factor = 1;
  float logit_cap = 0;  ///< logits become cap · tanh(logit / cap); 0: they stay
  /// The residual stream goes on from the output of each layer's norms, not from their input.
  bool post_norm_residual = false;
  /// Hyper-connections, see HyperShape; 1: one residual stream, without them.
  int64_t num_streams = 1;
  int64_t sinkhorn_iterations = 0;
  float hyper_epsilon = 0;
  /// Gated residual streams in place of hyper-connections: the rank of their input gates; 0: none.
  int64_t residual_rank = 0;
  bool operator==(const DecoderSpec&) const = default;
};

/// RoPE: the rotation of queries and keys by position.
struct Rotary {
  std::vector<float> frequencies;            ///< radians per position, one for each pair of columns
  float factor = 1;                          ///< multiplies sine and cosine
  bool interleaved = false;                  ///< pairs (2i, 2i + 1) instead of (i, i + half)
  std::vector<float> long_frequencies = {};  ///< of sequences beyond short_context; empty: the same
  bool operator==(const Rotary&) const = default;
};

/// RMSNorm of queries and keys, if the model has their weights.
enum class QkNorm : uint8_t {
  kPerHead,    ///< of each head, before RoPE
  kOverHeads,  ///< of all heads together, before RoPE
  kAfterRope,  ///< of each head, after RoPE
};

/// Gates that multiply the outputs of the heads, computed from the layer's input: sigmoids, or with
/// GroupedQuerySpec::softplus_gate log(1 + exp(x)).
enum class OutputGate : uint8_t {
  kNone,
  kInQueries,    ///< rows of q: each head's query, then its gate
  kAfterValues,  ///< further rows behind v
  kPerHead,      ///< one further row behind v for each head
};

/// The indexer of sparse attention: it chooses the positions that a token sees (DSA), or pools of
/// them, or each of its heads chooses blocks of positions for num_kv_heads / num_heads heads of
/// keys (MiniMax-M3).
struct IndexerSpec {
  int64_t top_k = 0;  ///< positions that a token sees; 0: all, there is no indexer
  int64_t num_heads = 0, head_dim = 0;
  bool interleaved = false;  ///< RoPE of the first columns of each head, see Rotary
  bool shared = false;       ///< the layer sees what the last layer with an indexer chose
  int64_t block = 0;         ///< positions of a block, which divide top_k; 0: it has none
  int64_t local_blocks = 0;  ///< the last blocks up to the token's own are always chosen
  /// Positions of a pool, which divide top_k: one key for all of them, without RoPE (GLM-5.3). A
  /// token also sees the positions behind the last whole pool. 0: there are no pools.
  int64_t pool = 0;
  /// The key of a pool is the mean of its keys, with a norm and RoPE. Queries come from the hidden
  /// state, and heads have no weights (Qwen3.8-Flash-Next).
  bool averaged = false;
  float norm_epsilon = 1e-6f;                                           ///< of the norms of q and k
  int64_t num_selections() const { return block > 0 ? num_heads : 1; }  ///< of a token
  int64_t selected() const {                                            ///< entries of one
    return block > 0 ? top_k / block : pool > 0 ? top_k / pool : top_k;
  }
  bool operator==(const IndexerSpec&) const = default;
};
struct IndexerDescription {
  /// [head_dim]: with blocks or averages, RMSNorm of queries and of keys. Else LayerNorm of keys:
  /// the weights, then the biases.
  std::vector<float> q_norm = {}, k_norm;
  /// [num_heads * head_dim, q_rank]; with blocks or averages it reads the hidden state.
  DescribedMatrix q;
  DescribedMatrix k;                            ///< [head_dim, hidden_size]
  std::optional<DescribedMatrix> weights = {};  ///< [num_heads, hidden_size]; likewise none
  /// With pools that are no averages: the gates that weigh the keys of a pool [head_dim,
  /// hidden_size], and what is added to them [pool, head_dim].
  std::optional<DescribedMatrix> pool_gates = {};
  std::vector<float> pool_bias = {};
};

/// GQA: several query heads share one head of keys and values.
struct GroupedQuerySpec {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;   ///< of a query and a key
  int64_t value_dim = 0;  ///< of a value and of an output head; 0: head_dim
  int64_t window = 0;     ///< a token sees itself and window - 1 before it; 0: all
  int64_t chunk = 0;      ///< a token sees only its own chunk of so many positions; 0: all
  float norm_epsilon = 1e-6f;
  float scale = 0;         ///< multiplies the scores; 0: 1 / sqrt(head_dim)
  float temper_scale = 0;  ///< with temper_strength: Ops::temper of queries, offset 1; 0: none
  float temper_strength = 0;
  QkNorm qk_norm = QkNorm::kPerHead;
  bool value_norm = false;       ///< RMSNorm without weights, of each head of values
  bool values_are_keys = false;  ///< qkv has no rows of v: values are the keys before norm and RoPE
  OutputGate output_gate = OutputGate::kNone;
  bool softplus_gate = false;
  Rotary rotary;             ///< of the first columns of each head
  IndexerSpec indexer = {};  ///< of blocks
  int64_t value_cols() const { return value_dim > 0 ? value_dim : head_dim; }
  int64_t queries() const { return num_heads * head_dim; }
  int64_t keys() const { return num_kv_heads * head_dim; }
  int64_t values() const { return num_kv_heads * value_cols(); }
  int64_t outputs() const { return num_heads * value_cols(); }
  /// Columns of the output gates.
  int64_t gates() const {
    if (output_gate == OutputGate::kNone) return 0;
    return output_gate == OutputGate::kPerHead ? num_heads : outputs();
  }
  bool operator==(const GroupedQuerySpec&) const = default;
};
struct GroupedQueryDescription {
  GroupedQuerySpec spec;
  std::vector<float> q_norm;  ///< [head_dim], or of all heads; empty: none
  std::vector<float> k_norm;  ///< likewise
  std::vector<float> sinks;   ///< [num_heads]; empty: none
  DescribedMatrix qkv;        ///< q, k, v stacked: they read one input; then the gate if it follows
  DescribedMatrix o;
  std::optional<IndexerDescription> indexer = {};
};

/// Compressed attention, see CompressedShape: every head reads one vector for each of the last
/// positions, and one for each entry, which a compressor makes of `rate` tokens.
struct CompressedSpec {
  int64_t num_heads = 0, head_dim = 0;
  int64_t q_rank = 0;
  int64_t window = 0;
  int64_t num_groups = 0;  ///< of heads; each has its own first matrix of the output
  int64_t group_rank = 0;  ///< rows of such a matrix
  float norm_epsilon = 1e-6f;
  Rotary rotary;             ///< of the last columns of a head; undone in the output
  int64_t rate = 0;          ///< tokens of an entry; 0: there are no entries
  bool overlap = false;      ///< see CompressShape
  IndexerSpec indexer = {};  ///< top_k 0: a token sees all entries
  int64_t heads_size() const { return num_heads * head_dim; }
  bool operator==(const CompressedSpec&) const = default;
};
struct CompressorDescription {
  std::vector<float> bias;  ///< [rate, columns], added to gates
  std::vector<float> norm;  ///< [columns of an entry]
  DescribedMatrix rows;     ///< [2 * columns, hidden_size]: values, then gates
};
struct CompressedDescription {
  CompressedSpec spec;
  std::vector<float> q_norm;         ///< [q_rank]
  std::vector<float> kv_norm;        ///< [head_dim]
  std::vector<float> sinks;          ///< [num_heads]
  DescribedMatrix q_a;               ///< [q_rank, hidden_size]
  DescribedMatrix q_b;               ///< [heads_size, q_rank]
  DescribedMatrix kv;                ///< [head_dim, hidden_size]
  std::vector<DescribedMatrix> o_a;  ///< of each group: [group_rank, heads_size / num_groups]
  DescribedMatrix o_b;               ///< [hidden_size, num_groups * group_rank]
  std::optional<CompressorDescription> compressor = {};  ///< with entries
  /// With an indexer: its own entries; its queries [num_heads * head_dim, q_rank]; the weights of
  /// its heads [num_heads, hidden_size].
  std::optional<CompressorDescription> index_compressor = {};
  std::optional<DescribedMatrix> index_q = {}, index_weights = {};
};

/// Multi-head latent attention (MLA): queries, keys and values come from vectors of low rank. RoPE
/// applies to a part of each key, which is the same for all heads.
struct LatentSpec {
  int64_t num_heads = 0;
  int64_t q_rank = 0;  ///< 0: queries come from the hidden state itself
  int64_t kv_rank = 0;
  int64_t nope_dim = 0;  ///< columns of a query or key without RoPE; they come first
  int64_t rope_dim = 0;  ///< columns with RoPE; 0: there are none
  int64_t value_dim = 0;
  float scale = 1;             ///< multiplies the scores
  float norm_epsilon = 1e-6f;  ///< of the latent vectors
  float temper_scale = 0;      ///< with temper_strength: Ops::temper of queries, offset 0; 0: none
  float temper_strength = 0;
  bool head_gate = false;  ///< a sigmoid of each head multiplies its output
  Rotary rotary;
  IndexerSpec indexer = {};
  int64_t head_dim() const { return nope_dim + rope_dim; }
  bool operator==(const LatentSpec&) const = default;
};
struct LatentDescription {
  LatentSpec spec;
  std::vector<float> q_norm;           ///< [q_rank]; empty if there is no q_a
  std::vector<float> kv_norm;          ///< [kv_rank]
  std::optional<DescribedMatrix> q_a;  ///< [q_rank, hidden_size]
  DescribedMatrix q;                   ///< [num_heads * head_dim, q_rank or hidden_size]
  DescribedMatrix kv_a;                ///< [kv_rank + rope_dim, hidden_size]
  DescribedMatrix kv_b;                ///< [num_heads * (nope_dim + value_dim), kv_rank]
  DescribedMatrix o;
  std::optional<IndexerDescription> indexer = {};  ///< of a layer that chooses positions itself
  std::optional<DescribedMatrix> gate = {};        ///< [num_heads, hidden_size], with head_gate
};

/// Gated DeltaNet: linear attention with a recurrent state (Yang et al., "Gated Delta Networks:
/// Improving Mamba2 with Delta Rule", 2024). Query and key head h serve the value heads
/// [h * value_heads_per_key, (h + 1) * value_heads_per_key).
struct GatedDeltaSpec {
  int64_t num_key_heads = 0;
  int64_t num_value_heads = 0;
  int64_t key_dim = 0;    ///< of one head
  int64_t value_dim = 0;  ///< of one head
  int64_t kernel = 0;     ///< taps of the short convolution
  /// True: rows are stored key head by key head, each with its q, k, v, z, and its b, a.
  bool by_key_head = false;
  bool sigmoid_gate = false;  ///< σ(z) multiplies the output, not silu(z)
  float norm_epsilon = 1e-6f;
  int64_t value_heads_per_key() const { return num_value_heads / num_key_heads; }
  int64_t keys() const { return num_key_heads * key_dim; }
  int64_t values() const { return num_value_heads * value_dim; }
  int64_t mixed() const { return 2 * keys() + values(); }  ///< columns of q, k, v together
  bool operator==(const GatedDeltaSpec&) const = default;
};
struct GatedDeltaDescription {
  GatedDeltaSpec spec;
  std::vector<float> convolution;  ///< [q, k and v columns, kernel]
  std::vector<float> a_log;        ///< [num_value_heads]
  std::vector<float> dt_bias;      ///< [num_value_heads]
  std::vector<float> norm;         ///< [value_dim], before the gate z
  DescribedMatrix qkvz;            ///< z gates the output
  DescribedMatrix ba;              ///< rows of b, the update's strength, and of a, the decay
  DescribedMatrix o;
};

/// A gated short convolution (LFM2): b, c and x come from the hidden state; out = o (c · conv(b ·
/// x)).
struct ShortConvolutionSpec {
  int64_t hidden_size = 0;
  int64_t kernel = 0;  ///< taps
  bool operator==(const ShortConvolutionSpec&) const = default;
};
struct ShortConvolutionDescription {
  ShortConvolutionSpec spec;
  std::vector<float> convolution;  ///< [hidden_size, kernel]
  DescribedMatrix bcx;             ///< rows of b, c and x
  DescribedMatrix o;
};

/// Mamba-2: a state space with one decay for each head (Dao and Gu, "Transformers are SSMs",
/// 2024). Group g serves heads [g * num_heads / num_groups, (g + 1) * num_heads / num_groups).
struct Mamba2Spec {
  int64_t num_heads = 0;
  int64_t num_groups = 0;  ///< of b, c and the norm
  int64_t head_dim = 0;
  int64_t state_dim = 0;  ///< columns of b and of c of one group
  int64_t kernel = 0;     ///< taps of the short convolution
  int64_t norm_size = 0;  ///< columns that are normalized together
  float least_step = 0;   ///< step sizes are clamped
  float most_step = std::numeric_limits<float>::infinity();
  float norm_epsilon = 1e-6f;
  int64_t inner() const { return num_heads * head_dim; }
  int64_t mixed() const { return inner() + 2 * num_groups * state_dim; }  ///< columns of x, b, c
  int64_t projected() const { return inner() + mixed() + num_heads; }
  bool operator==(const Mamba2Spec&) const = default;
};
struct Mamba2Description {
  Mamba2Spec spec;
  std::vector<float> convolution;        ///< [x, b and c columns, kernel]
  std::vector<float> convolution_bias;   ///< of these columns; empty: none
  std::vector<float> a_log, dt_bias, d;  ///< [num_heads]
  std::vector<float> norm;               ///< [inner], after the gate z
  DescribedMatrix in;                    ///< rows of z, x, b, c and the step sizes dt
  DescribedMatrix o;
};

/// A layer without attention, which is only a feed-forward.
struct NoAttentionSpec {
  bool operator==(const NoAttentionSpec&) const = default;
};
struct NoAttentionDescription {
  NoAttentionSpec spec = {};
};

/// Kimi Delta Attention (KDA; Kimi Team, "Kimi Linear", 2025): the gated delta rule where each
/// channel of a key has a decay of its own.
struct KimiDeltaSpec {
  int64_t num_heads = 0;
  int64_t head_dim = 0;   ///< of a query, a key and a value
  int64_t kernel = 0;     ///< taps of the short convolution
  int64_t rank = 0;       ///< of decays and output gates; 0: they come from the hidden state itself
  float lower_bound = 0;  ///< see GatedDeltaShape
  float norm_epsilon = 1e-6f;
  int64_t channels() const { return num_heads * head_dim; }
  bool operator==(const KimiDeltaSpec&) const = default;
};
struct KimiDeltaDescription {
  KimiDeltaSpec spec;
  std::vector<float> convolution;  ///< [channels of q, of k and of v, kernel]
  std::vector<float> a_log;        ///< [num_heads]
  std::vector<float> dt_bias;      ///< [channels]
  std::vector<float> norm;         ///< [head_dim], before the output gate
  DescribedMatrix qkv;
  DescribedMatrix strength;                  ///< [num_heads, hidden_size]: of the update
  std::optional<DescribedMatrix> decay_a{};  ///< [rank, hidden_size]
  DescribedMatrix decay;                     ///< [channels, rank or hidden_size]
  std::optional<DescribedMatrix> gate_a{};   ///< [rank, hidden_size]
  DescribedMatrix gate;                      ///< [channels, rank or hidden_size]
  DescribedMatrix o;
};

/// Lightning attention (Qin et al., "Lightning Attention-2", 2024): linear attention whose state
/// decays by a constant of each head.
struct LightningSpec {
  int64_t num_heads = 0;
  int64_t head_dim = 0;  ///< of a query, a key and a value
  float norm_epsilon = 1e-6f;
  int64_t channels() const { return num_heads * head_dim; }
  bool operator==(const LightningSpec&) const = default;
};
struct LightningDescription {
  LightningSpec spec;
  std::vector<float> decays;  ///< [num_heads], each below 1
  std::vector<float> norm;    ///< [channels], before the output gate
  DescribedMatrix qkv;        ///< rows of q, k and v of one head, then those of the next
  DescribedMatrix gate;       ///< [channels, hidden_size]
  DescribedMatrix o;
};

using AttentionDescription =
    std::variant<GroupedQueryDescription, LatentDescription, GatedDeltaDescription,
                 ShortConvolutionDescription, Mamba2Description, KimiDeltaDescription,
                 LightningDescription, CompressedDescription, NoAttentionDescription>;

struct RouterDescription {
  DescribedMatrix weights;
  std::vector<float> correction_bias;     ///< [num_experts], as the routing says; empty: none
  std::vector<float> expert_scales = {};  ///< likewise
  /// Experts behind the layer's own that return their input (LongCat's zero experts): further rows
  /// of weights and numbers of correction_bias.
  int64_t num_identity = 0;
  /// [vocab_size, top_k]: the experts of each token id (hash layers); empty: the scores choose.
  std::vector<int32_t> by_token = {};
};

/// One hyper-connection, see HyperWeights.
struct HyperDescription {
  std::vector<float> projection, base, scale;
};

/// Gated residual streams, see GatedResidual.
struct GatedResidualDescription {
  std::vector<float> norm;                  ///< [num_streams * hidden_size]
  DescribedMatrix down;                     ///< [residual_rank, num_streams * hidden_size]
  DescribedMatrix up;                       ///< [num_streams * hidden_size, residual_rank]
  std::optional<DescribedMatrix> inject{};  ///< [num_streams, num_streams * hidden_size]; at the
                                            ///< end of a model: none
};

/// Embeddings of n-grams, see Ngrams.
struct NgramSpec {
  int64_t size = 0;      ///< tokens of the longest n-gram; the shortest one has 2
  int64_t heads = 0;     ///< of each length
  int64_t head_dim = 0;  ///< columns of the table
  int64_t num_rows = 0;  ///< of the table
  int64_t kernel = 0;    ///< taps of the convolution
  int64_t hidden_size = 0, num_streams = 0;
  int32_t boundary = 0;  ///< the token that ends a text
  float norm_epsilon = 1e-6f;
  int64_t num_heads() const { return (size - 1) * heads; }
  int64_t streams_size() const { return num_streams * hidden_size; }
  bool operator==(const NgramSpec&) const = default;
};
struct NgramDescription {
  NgramSpec spec;
  std::vector<uint64_t> multipliers;     ///< [size], of the token, the one before it, and so on
  std::vector<uint64_t> sizes, offsets;  ///< [num_heads]: rows of a head, and its first one
  std::vector<float> key_norm, query_norm, value_norm;  ///< [streams_size]
  std::vector<float> convolution;                       ///< [streams_size, kernel]
  DescribedMatrix table;                                ///< [num_rows, head_dim], of floats
  DescribedMatrix key;                                  ///< [streams_size, num_heads * head_dim]
  DescribedMatrix value;                                ///< [hidden_size, num_heads * head_dim]
};

/// Experts that are added to a dense MLP, which is the layer's `shared` (Gemma-4). The MLP reads
/// the layer's post_norm; router and experts read their own norms of the same residual stream. All
/// [hidden_size].
struct BesideMlp {
  std::vector<float> router_norm, experts_norm;
  std::vector<float> experts_output_norm, mlp_output_norm;  ///< before the two are added
};

/// An expert that every token uses, beside its routed experts.
struct SharedExpertDescription {
  DescribedWeights mlp;
  std::optional<DescribedMatrix> gate;  ///< [1, hidden_size]: its sigmoid weights; empty: 1
};

/// Experts that read a shorter vector (latent MoE, Nemotron-3): `down` computes it from the layer's
/// input, `up` the output from the experts' sum. The router and the shared expert read the input.
struct LatentExpertsDescription {
  DescribedMatrix down;  ///< [size, hidden_size]
  DescribedMatrix up;    ///< [hidden_size, size]
};

/// The steps after attention or the feed-forward, in this order, before its output is added to the
/// residual stream.
struct OutputStepsDescription {
  std::vector<float> norm = {};  ///< [hidden_size], of the output; empty: none
  float scale = 1;               ///< multiplies the output
  float sum_scale = 1;           ///< multiplies the output and the residual stream
};

/// Shortcut-connected experts (LongCat-Flash): those of one layer join the residual stream with the
/// output of the next layer's MLP. The first layer adds only its shared expert.
enum class Shortcut : uint8_t { kNone, kBegins, kEnds };

struct LayerDescription {
  /// [hidden_size]; of LayerNorm: the weights, then the biases. Empty: no norm.
  std::vector<float> input_norm;
  std::vector<float> post_norm;  ///< likewise, before the experts
  AttentionDescription attention;
  std::optional<RouterDescription> router;  ///< empty in a dense layer
  /// The experts; a dense MLP is one expert that every token uses. Empty: the layer is only
  /// attention.
  std::optional<DescribedWeights> mlp;
  std::optional<SharedExpertDescription> shared = {};
  OutputStepsDescription attention_output = {}, mlp_output = {};
  std::optional<BesideMlp> beside_mlp = {};
  std::optional<LatentExpertsDescription> latent = {};
  bool parallel = false;  ///< the feed-forward reads the input of attention; post_norm is empty
  Shortcut shortcut = Shortcut::kNone;
  HyperDescription attention_hyper = {}, mlp_hyper = {};  ///< with several residual streams
  /// In their place with a residual_rank.
  std::optional<GatedResidualDescription> attention_residual = {}, mlp_residual = {};
  std::optional<NgramDescription> ngrams = {};  ///< added to the streams before attention
  /// Of an FP8 cache: one, or one for each head of keys; empty: the file has none.
  std::vector<float> key_scales = {}, value_scales = {};
};

/// Tensors that the architecture defines and this library does not use.
struct IgnoredTensors {
  std::string what;
  int64_t num_tensors = 0;
  int64_t bytes = 0;
  std::vector<std::string> prefixes = {};  ///< of their names
};

/// Vocabulary parallelism: the rows of the output on each rank, in whole blocks of scales.
struct OutputShares {
  int64_t size = 1, rank = 0;
  int64_t num_rows = 0;  ///< of all ranks
  int64_t of_block = 1;  ///< rows of a block; the last one may have fewer
  int64_t first(int64_t of_rank) const;
  int64_t rows(int64_t of_rank) const { return first(of_rank + 1) - first(of_rank); }
  /// The most rows of a rank: the first one's.
  int64_t most_rows() const { return rows(0); }
};

/// The input of a layer for multi-token prediction: matrix · (norm(embedding) ‖ norm(hidden
/// state)), of a token and of the model's last hidden state before it (DeepSeek-AI, "DeepSeek-V3
/// Technical Report", 2024).
struct JoinDescription {
  std::vector<float> embedding_norm, hidden_norm;  ///< [hidden_size]
  DescribedMatrix matrix;                          ///< [hidden_size, 2 * hidden_size]
  /// The hidden states are those before the last norm, of the model and of the layer.
  bool before_norm = false;
};

struct Description {
  DecoderSpec spec;
  DescribedMatrix embedding;  ///< [vocab_size, hidden_size], of floats or blocks of GGUF
  std::vector<LayerDescription> layers;
  std::vector<float> final_norm;  ///< as input_norm
  DescribedMatrix output;         ///< [vocab_size, hidden_size]; the embedding's own tensor if tied
  bool tied = false;
  std::vector<IgnoredTensors> ignored = {};
  OutputShares output_shares = {};           ///< size 1: `output` is whole
  std::optional<JoinDescription> join = {};  ///< the only layer is one for multi-token prediction
  /// With several residual streams: input weights alone, or nothing: their mean.
  HyperDescription final_hyper = {};
  std::optional<GatedResidualDescription> final_residual = {};  ///< there is no final norm then

  /// The type of the embedding in a device's memory: as stored, but blocks become f32 on GPUs.
  DType embedding_type(Platform platform) const {
    const DType stored = embedding.shape().key.dtype;
    return is_gguf_block(stored) && platform != Platform::kCpu ? DType::kF32 : stored;
  }
  int64_t embedding_bytes(Platform platform) const {
    return spec.vocab_size * row_bytes(embedding_type(platform), spec.hidden_size);
  }
  /// The tables of n-grams, as stored.
  int64_t ngram_bytes() const {
    int64_t bytes = 0;
    for (const LayerDescription& layer : layers) {
      if (!layer.ngrams) continue;
      const MatrixShape& table = layer.ngrams->table.shape();
      bytes += table.n * row_bytes(table.key.dtype, table.k);
    }
    return bytes;
  }
};

/// Finds the architecture and describes the model. Errors: an unknown architecture, with the known
/// ones and this checkpoint's experts; a tensor that nothing claims.
Result<Description> describe(const Checkpoint& checkpoint);

/// Describes the checkpoint's layer for multi-token prediction as a model of its own. Errors
/// (kUnsupported): has_next_tokens() is false.
Result<Description> describe_next_tokens(const Checkpoint& checkpoint);

/// Schemes that the user requests in place of those of the checkpoint; see ModelOptions.
struct SchemeChanges {
  QuantizationMap quantization;
  ActivationPrecision activations = ActivationPrecision::kStored;
  WeightResidency weights = WeightResidency::kPacked;  ///< not kAuto
};
/// Changes the linear layers to the requested schemes. Errors: a matrix that cannot be quantized or
/// folded as requested.
Status change_schemes(const Checkpoint& checkpoint, const SchemeChanges& changes,
                      Description& description);
/// The change of WeightResidency::kFolded alone.
Status fold(Description& description);
/// describe, then change_schemes.
Result<Description> describe(const Checkpoint& checkpoint, const SchemeChanges& changes);
Result<Description> describe_next_tokens(const Checkpoint& checkpoint,
                                         const SchemeChanges& changes);

}  // namespace moracle
