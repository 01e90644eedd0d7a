#include "models/decoder/gated_residual.h"

#include "base/try.h"
#include "models/attention/attention.h"

namespace moracle {

Status GatedResidual::load(GatedResidualDescription&& from, Loader& loader) {
  MORACLE_CHECK(loader.load(norm_, from.norm));
  MORACLE_CHECK(loader.load(down_, std::move(from.down)));
  MORACLE_CHECK(loader.load(up_, std::move(from.up)));
  return from.inject ? loader.load(inject_, std::move(*from.inject)) : Status();
}

Status norm_streams(const Matrix& streams, const float* weights, int64_t size, float epsilon,
                    const Matrix& out, Ops& ops, Stream stream) {
  for (int64_t at = 0; at < streams.cols; at += size) {
    MORACLE_CHECK(ops.rms_norm(columns(streams, at, size), weights + at, size, epsilon,
                               columns(out, at, size), stream));
  }
  return {};
}

Status GatedResidual::mix(const Matrix& streams, const Matrix& out,
                          const GatedResidualScratch& scratch, const float* inverse, float epsilon,
                          Ops& ops, Stream stream) {
  const int64_t tokens = streams.rows, size = out.cols;
  const Matrix normed = scratch.normed.slice(0, tokens), up = scratch.up.slice(0, tokens),
               low = scratch.low_rank.slice(0, tokens);
  MORACLE_CHECK(norm_streams(streams, norm_.as<float>(), size, epsilon, normed, ops, stream));
  MORACLE_CHECK(down_->apply(normed, low, stream));
  MORACLE_CHECK(ops.scale_rows(low, inverse, low, stream));
  MORACLE_CHECK(ops.gate(low, 0, low, 0, 1, low.cols, Gate::kSigmoid, stream));  // silu
  MORACLE_CHECK(up_->apply(low, up, stream));
  if (inject_) MORACLE_CHECK(inject_->apply(normed, scratch.weights.slice(0, tokens), stream));
  MORACLE_CHECK(ops.gate(normed, 0, up, 0, 1, up.cols, Gate::kSigmoid, stream));
  const HyperShape mean{.num_streams = streams.cols / size};
  return ops.collapse_streams(normed, {}, mean, out, nullptr, stream);
}

}  // namespace moracle
