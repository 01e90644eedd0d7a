#include "models/divide.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/experts/matrix_share.h"

namespace moracle {
namespace {

struct Share {
  int64_t size, rank;
  std::string layer;

  Error refuse(std::string need, std::string fact) const {
    return {ErrorKind::kUnsupported, "", str(layer, ", tp=", size), std::move(need),
            std::move(fact)};
  }
  Status divides(const char* what, int64_t count) const {
    if (count % size == 0) return {};
    return refuse(str("a number of ", what, " that ", size, " ranks divide"),
                  str("there are ", count));
  }
  /// This rank's part of `count` rows from `first` on.
  RowRange of(int64_t first, int64_t count) const {
    return {first + count / size * rank, first + count / size * (rank + 1)};
  }
  Status take_rows(DescribedMatrix& matrix, const std::vector<RowRange>& ranges) const {
    MORACLE_TRY(DescribedMatrix own, MatrixShare::rows(std::move(matrix), ranges));
    matrix = std::move(own);
    return {};
  }
  Status take_columns(DescribedMatrix& matrix) const {
    const RowRange own = of(0, matrix.shape().k);
    MORACLE_TRY(DescribedMatrix share,
                MatrixShare::columns(std::move(matrix), own.begin, own.end, rank == 0));
    matrix = std::move(share);
    return {};
  }
};

Status divide_attention(GroupedQueryDescription& attention, const Share& share) {
  GroupedQuerySpec& spec = attention.spec;
  MORACLE_CHECK(share.divides("query heads", spec.num_heads));
  MORACLE_CHECK(share.divides("heads of keys and values", spec.num_kv_heads));
  if (spec.qk_norm == QkNorm::kOverHeads && !attention.q_norm.empty())
    return share.refuse("norms of each head by itself", "a norm spans the heads of all ranks");
  const bool between = spec.output_gate == OutputGate::kInQueries;
  const int64_t queries = spec.queries() + (between ? spec.gates() : 0), keys = spec.keys();
  std::vector<RowRange> rows = {share.of(0, queries), share.of(queries, keys)};
  const int64_t values = spec.values_are_keys ? 0 : spec.values();
  if (values > 0) rows.push_back(share.of(queries + keys, values));
  if (!between && spec.gates() > 0) rows.push_back(share.of(queries + keys + values, spec.gates()));
  MORACLE_CHECK(share.take_rows(attention.qkv, rows));
  if (!attention.sinks.empty()) {
    const RowRange own = share.of(0, spec.num_heads);
    attention.sinks = {attention.sinks.begin() + own.begin, attention.sinks.begin() + own.end};
  }
  if (attention.indexer) {
    // A rank keeps the index heads that choose for its heads of keys, and all index keys.
    IndexerSpec& indexer = spec.indexer;
    if (share.size % indexer.num_heads != 0)
      MORACLE_CHECK(share.divides("index heads", indexer.num_heads));
    const int64_t first = share.rank * indexer.num_heads / share.size;
    indexer.num_heads = std::max<int64_t>(indexer.num_heads / share.size, 1);
    const RowRange own{first * indexer.head_dim, (first + indexer.num_heads) * indexer.head_dim};
    MORACLE_CHECK(share.take_rows(attention.indexer->q, {own}));
  }
  spec.num_heads /= share.size;
  spec.num_kv_heads /= share.size;
  return share.take_columns(attention.o);
}

Status divide_attention(LatentDescription& attention, const Share& share) {
  LatentSpec& spec = attention.spec;
  MORACLE_CHECK(share.divides("heads", spec.num_heads));
  const int64_t keys = spec.num_heads * (spec.nope_dim + spec.value_dim);
  MORACLE_CHECK(share.take_rows(attention.q, {share.of(0, spec.num_heads * spec.head_dim())}));
  MORACLE_CHECK(share.take_rows(attention.kv_b, {share.of(0, keys)}));
  if (attention.gate)
    MORACLE_CHECK(share.take_rows(*attention.gate, {share.of(0, spec.num_heads)}));
  spec.num_heads /= share.size;
  return share.take_columns(attention.o);
}

Status divide_attention(GatedDeltaDescription&, const Share& share) {
  return share.refuse("attention over keys and values", "gated DeltaNet is not divided");
}
Status divide_attention(ShortConvolutionDescription&, const Share& share) {
  return share.refuse("attention over keys and values", "a short convolution is not divided");
}
Status divide_attention(Mamba2Description&, const Share& share) {
  return share.refuse("attention over keys and values", "Mamba-2 is not divided");
}
Status divide_attention(CompressedDescription&, const Share& share) {
  return share.refuse("attention over keys and values of each head",
                      "compressed attention is not divided");
}
Status divide_attention(NoAttentionDescription&, const Share&) {
  return {};
}

Status divide_attention(KimiDeltaDescription&, const Share& share) {
  return share.refuse("attention over keys and values", "Kimi Delta Attention is not divided");
}
Status divide_attention(LightningDescription&, const Share& share) {
  return share.refuse("attention over keys and values", "lightning attention is not divided");
}

// A dense MLP, or a shared expert.
Status divide_mlp(DescribedWeights& mlp, const Share& share) {
  LayerSpec& spec = mlp.spec;
  const int64_t size = spec.intermediate_size;
  MORACLE_CHECK(share.divides("columns between the two matrices of an MLP", size));
  std::vector<RowRange> rows;
  for (int64_t first = 0; first < spec.w13_rows(); first += size)
    rows.push_back(share.of(first, size));
  MORACLE_CHECK(share.take_rows(mlp.w13, rows));
  MORACLE_CHECK(share.take_columns(mlp.w2));
  spec.intermediate_size = size / share.size;
  return {};
}

Status divide_output(Description& description, const ModelOptions& options) {
  const int64_t size = options.lm_head_size, rows = description.output.shape().n;
  OutputShares& shares = description.output_shares;
  shares = {.num_rows = rows};
  if (size == 1) return {};
  // 128 rows suit the tiles of every kernel.
  const int64_t scaled = std::max<int64_t>(description.output.shape().key.group.rows, 1);
  const int64_t wide = (128 + scaled - 1) / scaled * scaled;
  shares = {size, options.parallel.ep_rank, rows, rows >= size * wide ? wide : scaled};
  if (rows <= (size - 1) * shares.of_block)
    return Error{ErrorKind::kUnsupported, "", str("lm_head, on ", size, " ranks"),
                 str("at least ", size, " blocks of ", shares.of_block, " rows with a scale"),
                 str("it has ", rows, " rows")};
  const int64_t first = shares.first(shares.rank);
  MORACLE_TRY(DescribedMatrix own, MatrixShare::rows(std::move(description.output),
                                                     {{first, first + shares.rows(shares.rank)}}));
  description.output = std::move(own);
  return {};
}

}  // namespace

Status divide(Description& description, const ModelOptions& options) {
  MORACLE_CHECK(divide_output(description, options));
  if (options.tp_size == 1) return {};
  for (size_t l = 0; l < description.layers.size(); ++l) {
    LayerDescription& layer = description.layers[l];
    const Share share{options.tp_size, options.parallel.ep_rank, str("layer ", l)};
    MORACLE_CHECK(std::visit([&](auto& attention) { return divide_attention(attention, share); },
                             layer.attention));
    if (layer.mlp && !layer.router) MORACLE_CHECK(divide_mlp(*layer.mlp, share));
    if (layer.shared) MORACLE_CHECK(divide_mlp(layer.shared->mlp, share));
  }
  return {};
}

}  // namespace moracle
