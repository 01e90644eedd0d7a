// Tests that the executed scheme is the planned scheme. Similar schemes run with the same weights
// on every row. The bound on the expected output separates them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "moe/layer_on_rows.h"
#include "quant/activation.h"

namespace moracle::effective_scheme_test {
namespace {

using conformance::random_weights;
using testing::cpu_rows;
using testing::expected_of;
using testing::odd_layer;
using testing::output_on;
using testing::share_of_bound;
using testing::TokenBatch;

/// Each token has one value far above the rest, so few codes are left for the rest.
TokenBatch with_outliers(const LayerSpec& spec) {
  TokenBatch batch = testing::random_batch(spec, 6);
  for (int64_t t = 0; t < batch.tokens; ++t) batch.hidden[t * spec.hidden_size + 7 * t] = 300;
  return batch;
}

CanonicalMatrix own(const CanonicalMatrix& matrix) {
  CanonicalMatrix copy;
  copy.n = matrix.n;
  copy.k = matrix.k;
  copy.key = matrix.key;
  copy.storage.assign(matrix.codes.begin(), matrix.codes.end());
  copy.codes = copy.storage;
  copy.scales = matrix.scales;
  return copy;
}

/// The same weights under another scheme. `change` edits the matrices of every expert.
template <class Change>
DescribedWeights changed(const DescribedWeights& from, const Scheme& scheme, Change change) {
  std::vector<CanonicalMatrix> w13, w2;
  for (int64_t e = 0; e < from.spec.num_experts; ++e) {
    w13.push_back(own(*from.w13.expert(e)));
    w2.push_back(own(*from.w2.expert(e)));
    change(w13.back(), w2.back());
  }
  LayerSpec spec = from.spec;
  spec.scheme = scheme;
  DescribedWeights weights{spec, DescribedMatrix::from(scheme, std::move(w13)),
                           DescribedMatrix::from(scheme, std::move(w2))};
  weights.w13.set_input_scales(from.w13.input_scales());
  weights.w2.set_input_scales(from.w2.input_scales());
  return weights;
}

// Every row quantizes activations exactly if the scheme does.
TEST(EffectiveScheme, DiffersFromWeightOnlyByOneOutlierPerToken) {
  for (const Scheme& scheme : conformance::schemes()) {
    if (!scheme.activation) continue;
    const LayerSpec quantizes = odd_layer(scheme), weight_only = odd_layer({scheme.weight, {}});
    const TokenBatch batch = with_outliers(quantizes);
    const auto a8 = expected_of(random_weights(quantizes, 1), batch);
    for (const std::string& row : cpu_rows(quantizes)) {
      SCOPED_TRACE(str(row, ", ", name(scheme)));
      const auto a16 = expected_of(random_weights(weight_only, 1), batch, row);
      const auto by_a8 = output_on(row, random_weights(quantizes, 1), batch),
                 by_a16 = output_on(row, random_weights(weight_only, 1), batch);
      EXPECT_LE(share_of_bound(a8, by_a8), 1);
      EXPECT_LE(share_of_bound(a16, by_a16), 1);
      EXPECT_GT(share_of_bound(a8, by_a16), 2);
      EXPECT_GT(share_of_bound(a16, by_a8), 2);
    }
  }
}

// Weights have equal shapes, codes and scales. Only the activation scales differ: powers of
// two or any number.
TEST(EffectiveScheme, DistinguishesMxfp8FromFp8BlocksOfEqualShapes) {
  const Scheme mxfp8{kMxfp8Static, kMxfp8Dynamic},
      blocks{fp8_static_block(1, 32), fp8_dynamic_group(32)};
  const auto as_mxfp8 = [&] { return random_weights(odd_layer(mxfp8), 1); };
  const auto as_blocks = [&] {
    return changed(as_mxfp8(), blocks, [&](CanonicalMatrix& w13, CanonicalMatrix& w2) {
      w13.key = w2.key = blocks.weight;
    });
  };
  const TokenBatch batch = testing::random_batch(odd_layer(mxfp8), 6);
  const auto want_mxfp8 = expected_of(as_mxfp8(), batch),
             want_blocks = expected_of(as_blocks(), batch);
  for (const std::string& row : cpu_rows(odd_layer(mxfp8))) {
    const auto by_mxfp8 = output_on(row, as_mxfp8(), batch),
               by_blocks = output_on(row, as_blocks(), batch);
    EXPECT_LE(share_of_bound(want_mxfp8, by_mxfp8), 1) << row;
    EXPECT_LE(share_of_bound(want_blocks, by_blocks), 1) << row;
    EXPECT_GT(share_of_bound(want_mxfp8, by_blocks), 2) << row;
    EXPECT_GT(share_of_bound(want_blocks, by_mxfp8), 2) << row;
  }
}

// Gate and up keep the scales of their tensors. One common scale would round the codes again.
TEST(EffectiveScheme, KeepsTensorScalesOfGateAndUp) {
  const Scheme scheme{kFp8StaticTensorSym, kFp8DynamicTokenSym};
  const LayerSpec spec = odd_layer(scheme);
  const float of_gate = 0.0003f, of_up = 0.0011f;
  const auto two_scales = [&] {
    return changed(random_weights(spec, 1), scheme, [&](CanonicalMatrix& w13, CanonicalMatrix&) {
      std::fill_n(w13.scales.begin(), w13.n / 2, of_gate);
      std::fill_n(w13.scales.begin() + w13.n / 2, w13.n / 2, of_up);
    });
  };
  const auto merged = [&] {
    return changed(two_scales(), scheme, [&](CanonicalMatrix& w13, CanonicalMatrix&) {
      for (int64_t i = 0; i < w13.n / 2 * w13.k; ++i) {
        auto& code = reinterpret_cast<uint8_t&>(w13.storage[i]);
        code = encode(*scheme.activation, decode(*scheme.activation, code) * of_gate, of_up);
      }
      std::fill(w13.scales.begin(), w13.scales.end(), of_up);
    });
  };
  const TokenBatch batch = testing::random_batch(spec, 6);
  const auto want = expected_of(two_scales(), batch);
  for (const std::string& row : cpu_rows(spec)) {
    EXPECT_LE(share_of_bound(want, output_on(row, two_scales(), batch)), 1) << row;
    EXPECT_GT(share_of_bound(want, output_on(row, merged(), batch)), 2) << row;
  }
}

// Each expert's rows are quantized with that expert's stored scale, not with the largest of
// all.
TEST(EffectiveScheme, KeepsInputScaleOfEachExpert) {
  const LayerSpec spec = odd_layer({kFp8StaticTensorSym, kFp8StaticTensorSym});
  const auto own_scales = [&] { return random_weights(spec, 1); };
  const auto merged = [&] {
    DescribedWeights weights = random_weights(spec, 1);
    for (DescribedMatrix* matrix : {&weights.w13, &weights.w2}) {
      std::vector<float> scales = matrix->input_scales();
      std::fill(scales.begin(), scales.end(), *std::max_element(scales.begin(), scales.end()));
      matrix->set_input_scales(scales);
    }
    return weights;
  };
  const TokenBatch batch = testing::random_batch(spec, 6);
  const auto want = expected_of(own_scales(), batch);
  for (const std::string& row : cpu_rows(spec)) {
    EXPECT_LE(share_of_bound(want, output_on(row, own_scales(), batch)), 1) << row;
    EXPECT_GT(share_of_bound(want, output_on(row, merged(), batch)), 2) << row;
  }
}

}  // namespace
}  // namespace moracle::effective_scheme_test
