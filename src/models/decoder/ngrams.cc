#include "models/decoder/ngrams.h"

#include "base/try.h"
#include "models/attention/attention.h"
#include "models/decoder/gated_residual.h"
#include "oracle/carve.h"

namespace moracle {
namespace ngrams {
namespace {

int64_t padded(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}
int64_t token_bytes(const NgramSpec& spec) {
  return padded((spec.size - 1) * static_cast<int64_t>(sizeof(int32_t)));
}

}  // namespace
}  // namespace ngrams

int64_t ngram_state_bytes(const NgramSpec& spec) {
  const int64_t rows = (spec.kernel - 1) * spec.size;
  return ngrams::token_bytes(spec) + ngrams::padded(rows * spec.streams_size() * 4);
}

NgramScratch carve_ngrams(const NgramSpec& spec, int64_t tokens, DType dtype, std::byte* base) {
  Carver carver(base);
  const auto take = [&](int64_t cols) { return carver.take_matrix(dtype, tokens, cols); };
  NgramScratch scratch;
  scratch.rows = carver.take<int32_t>(tokens * spec.num_heads());
  scratch.embeddings = take(spec.num_heads() * spec.head_dim);
  scratch.value = take(spec.hidden_size);
  scratch.keys = take(spec.streams_size());
  scratch.queries = take(spec.streams_size());
  scratch.gated = take(spec.streams_size());
  scratch.bytes = carver.bytes();
  return scratch;
}

Status Ngrams::load(NgramDescription&& from, Loader& loader) {
  const DType type = from.table.shape().key.dtype;
  if (loaded() && (from.spec != spec_ || type != table_type)) {
    return Error{ErrorKind::kInvalidArgument, "", "reload", "the n-grams of the loaded model",
                 "they differ"};
  }
  spec_ = from.spec;
  table_type = type;
  MORACLE_CHECK(loader.load(multipliers_, from.multipliers));
  MORACLE_CHECK(loader.load(sizes_, from.sizes));
  MORACLE_CHECK(loader.load(offsets_, from.offsets));
  MORACLE_CHECK(loader.load(key_norm_, from.key_norm));
  MORACLE_CHECK(loader.load(query_norm_, from.query_norm));
  MORACLE_CHECK(loader.load(value_norm_, from.value_norm));
  MORACLE_CHECK(loader.load(convolution_, by_tap(from.convolution, spec_.kernel)));
  MORACLE_CHECK(loader.device().synchronize());  // before the turned weights are destroyed
  MORACLE_CHECK(loader.load(key_, std::move(from.key)));
  return loader.load(value_, std::move(from.value));
}

Status Ngrams::apply(const Matrix& streams, const Batch& batch, int64_t state, std::byte* memory,
                     Ops& ops, Stream stream) {
  const NgramSpec& spec = spec_;
  const NgramScratch scratch = carve_ngrams(spec, streams.rows, streams.dtype, memory);
  const NgramShape shape{spec.size,
                         spec.heads,
                         multipliers_.as<uint64_t>(),
                         sizes_.as<uint64_t>(),
                         offsets_.as<uint64_t>(),
                         spec.boundary,
                         state};
  MORACLE_CHECK(ops.hash_ngrams(shape, batch, scratch.rows, stream));
  const Matrix rows{scratch.embeddings.data, streams.dtype, streams.rows * spec.num_heads(),
                    spec.head_dim, spec.head_dim};
  MORACLE_CHECK(ops.embed({table.as<std::byte>(), table_type, {spec.num_rows, spec.head_dim}},
                          scratch.rows, rows, stream));
  const auto norm = [&](const Matrix& x, const Buffer& weights, const Matrix& out) {
    return norm_streams(x, weights.as<float>(), spec.hidden_size, spec.norm_epsilon, out, ops,
                        stream);
  };
  MORACLE_CHECK(key_->apply(scratch.embeddings, scratch.keys, stream));
  MORACLE_CHECK(value_->apply(scratch.embeddings, scratch.value, stream));
  MORACLE_CHECK(norm(scratch.keys, key_norm_, scratch.keys));
  MORACLE_CHECK(norm(streams, query_norm_, scratch.queries));
  MORACLE_CHECK(
      ops.gate_streams(scratch.keys, scratch.queries, scratch.value, scratch.gated, stream));
  MORACLE_CHECK(ops.add(streams, scratch.gated, stream));
  MORACLE_CHECK(norm(scratch.gated, value_norm_, scratch.gated));
  ConvolutionShape convolution{spec.kernel, true, state + ngrams::token_bytes(spec)};
  convolution.dilation = spec.size;
  MORACLE_CHECK(
      ops.convolve(scratch.gated, floats(convolution_), convolution, batch, scratch.keys, stream));
  return ops.add(streams, scratch.keys, stream);
}

}  // namespace moracle
