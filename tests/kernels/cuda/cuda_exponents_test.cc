// Tests mxfp8 weights on cuda-sm90: exponents that move into the codes, bit for bit; NaN; replaced
// weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "conformance/conformance.h"
#include "kernels/cuda/cuda_test.h"
#include "kernels/cuda/gemm_sm90/exponents.h"
#include "layout/mma16.h"
#include "moracle/moe.h"
#include "support/must.h"

namespace moracle::cuda_exponents_test {
namespace {

using testing::must;

constexpr int64_t kExperts = 8, kMostTokens = 600;
constexpr uint8_t kNanCode = 0xff, kNanExponent = 255;

// Weights with exponents that differ by up to `spread` within a row.
CanonicalMatrix matrix_of(int64_t n, int64_t k, uint64_t seed, int spread) {
  CanonicalMatrix m = conformance::random_matrix({.n = n, .k = k, .key = kMxfp8Static}, seed);
  for (size_t i = 0; i < m.scales.size(); ++i)
    m.scales[i] = std::ldexp(0x1p-12f, -static_cast<int>((i * 7 + seed) % (spread + 1)));
  return m;
}

class CudaExponentsTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && !select(request_of("bf16"), Machine::here()).plan)
      GTEST_SKIP() << "cuda-sm90 does not serve this GPU";
  }
  static Request request_of(const char* scheme, const char* backend = "cuda-sm90") {
    Request request;
    request.layer.name = "layer";
    request.layer.num_experts = kExperts, request.layer.top_k = 2;
    request.layer.hidden_size = 512, request.layer.intermediate_size = 256;
    request.layer.scheme = *parse_scheme(scheme);
    request.max_num_tokens = kMostTokens;
    request.backend = backend;
    request.platform = Platform::kCuda;
    return request;
  }
  // With `nan`, the first column of gate row 0 of expert 0 is NaN.
  static DescribedWeights weights_of(const LayerSpec& spec, uint64_t seed, bool nan = false) {
    const auto described = [&](int64_t n, int64_t k, bool with_nan) {
      std::vector<CanonicalMatrix> experts;
      for (int64_t e = 0; e < spec.num_experts; ++e) {
        experts.push_back(matrix_of(n, k, seed * 100 + e, 3));
        if (with_nan && e == 0) experts[0].storage[0] = std::byte{kNanCode};
      }
      return DescribedMatrix::from(spec.scheme, std::move(experts));
    };
    return {spec, described(2 * spec.intermediate_size, spec.hidden_size, nan),
            described(spec.hidden_size, spec.intermediate_size, false)};
  }
  FusedMoe make(const Request& request, uint64_t seed, bool nan = false) {
    return must(FusedMoe::make(weights_of(request.layer, seed, nan),
                               select(request, Machine::here()), device_));
  }
  std::vector<float> apply(FusedMoe& moe, int64_t tokens) {
    const Request request = request_of("bf16");
    const conformance::Inputs in =
        conformance::random_inputs(request, tokens, conformance::Spread::kUniform, 7);
    const Buffer hidden = upload(to_bf16(in.hidden)), ids = upload(in.ids),
                 weights = upload(in.weights);
    const int64_t width = request.layer.hidden_size;
    const Buffer output = allocate(tokens * width * sizeof(float));
    must(moe.apply(bf16_matrix(hidden, tokens, width), {ids.as<int32_t>()}, {weights.as<float>()},
                   Matrix::f32(output.as<float>(), tokens, width)));
    ids_ = in.ids;
    return download<float>(output);
  }
  std::vector<int32_t> ids_;  // of the last apply
};

TEST_F(CudaExponentsTest, MoveIntoCodesOfEveryRow) {
  constexpr int64_t kN = 48, kK = 160;
  const Scheme scheme{kMxfp8Static, kMxfp8Dynamic};
  for (const int spread : {0, 2, 9, 40}) {
    SCOPED_TRACE(spread);
    std::vector<CanonicalMatrix> experts, same;
    for (const uint64_t seed : {1, 2}) {
      experts.push_back(matrix_of(kN, kK, seed, spread));
      same.push_back(matrix_of(kN, kK, seed, spread));
    }
    const KernelWeights weights =
        must(convert(DescribedMatrix::from(scheme, std::move(experts)), kMma16Layout, *device_));
    auto& gpu = dynamic_cast<CudaDevice&>(*device_);
    must(cuda::Exponents(weights, true).prepare(weights, gpu.queue(), {}));
    must(device_->synchronize());
    const std::vector<uint8_t> bytes = download<uint8_t>(weights.buffer);
    for (size_t e = 0; e < same.size(); ++e) {
      const CanonicalMatrix& m = same[e];
      const uint8_t* const packed = bytes.data() + e * weights.sections.bytes;
      const auto* const scales = reinterpret_cast<const float*>(packed + weights.sections.scales);
      const auto codes = reinterpret_cast<const uint8_t*>(m.codes.data());
      for (int64_t r = 0; r < kN; ++r) {
        const auto row = m.scales.begin() + r * m.scale_cols();
        const float largest = *std::max_element(row, row + m.scale_cols());
        ASSERT_EQ(scales[r], largest) << "row " << r;
        for (int64_t c = 0; c < kK; ++c) {
          const float value = e4m3_to_float(codes[r * kK + c]) * (row[c / 32] / largest);
          const uint8_t want = float_to_e4m3(value);
          ASSERT_EQ(packed[mma16::code_bit(8, kK, r, c) / 8], want) << "row " << r << ", " << c;
        }
      }
    }
  }
}

TEST_F(CudaExponentsTest, GroupWithNanGetsExponentOfNan) {
  constexpr int64_t kN = 32, kK = 96, kRow = 17, kCol = 70;
  const Scheme scheme{kMxfp8Static, {}};
  std::vector<CanonicalMatrix> one;
  one.push_back(matrix_of(kN, kK, 1, 3));
  one[0].storage[kRow * kK + kCol] = std::byte{0x7f};
  const KernelWeights weights =
      must(convert(DescribedMatrix::from(scheme, std::move(one)), kMma16Layout, *device_));
  const std::vector<uint8_t> before = download<uint8_t>(weights.buffer);
  auto& gpu = dynamic_cast<CudaDevice&>(*device_);
  must(cuda::Exponents(weights, false).prepare(weights, gpu.queue(), {}));
  must(device_->synchronize());
  const std::vector<uint8_t> after = download<uint8_t>(weights.buffer);
  const size_t place =
      weights.sections.scales + (kRow / 16 * (kK / 32) + kCol / 32) * 16 + kRow % 16;
  for (size_t i = 0; i < before.size(); ++i)
    ASSERT_EQ(after[i], i == place ? kNanExponent : before[i]) << "byte " << i;
}

TEST_F(CudaExponentsTest, NanReachesExactlyTheTokensOfItsExpert) {
  for (const char* scheme : {"mxfp8-w8a16", "mxfp8-w8a8"}) {
    const Request request = request_of(scheme);
    FusedMoe moe = make(request, 1, true);
    for (const int64_t tokens : {1, 8, 30, 500}) {
      SCOPED_TRACE(std::string(scheme) + ", " + std::to_string(tokens) + " tokens");
      const std::vector<float> got = apply(moe, tokens);
      const int64_t width = request.layer.hidden_size;
      for (int64_t t = 0; t < tokens; ++t) {
        const bool chosen = ids_[2 * t] == 0 || ids_[2 * t + 1] == 0;
        const auto row = got.begin() + t * width;
        const bool finite = std::all_of(row, row + width, [](float v) { return std::isfinite(v); });
        ASSERT_EQ(finite, !chosen) << "token " << t;
      }
    }
  }
}

// A stage has more groups than a row of 96 columns. Its last one must not be a group of the next
// panel: the product of a code of 0 and NaN is NaN.
TEST_F(CudaExponentsTest, NanStaysInItsOutputOfFewColumns) {
  constexpr int64_t kColumns = 96, kOutput = 16;  // the first output of the second panel
  Request request = request_of("mxfp8-w8a16");
  LayerSpec& layer = request.layer;
  layer.intermediate_size = kColumns;
  std::vector<CanonicalMatrix> w13, w2;
  for (int64_t e = 0; e < kExperts; ++e) {
    w13.push_back(matrix_of(2 * kColumns, layer.hidden_size, e, 3));
    w2.push_back(matrix_of(layer.hidden_size, kColumns, 100 + e, 3));
    w2.back().storage[kOutput * kColumns] = std::byte{kNanCode};
  }
  FusedMoe moe = must(FusedMoe::make({layer, DescribedMatrix::from(layer.scheme, std::move(w13)),
                                      DescribedMatrix::from(layer.scheme, std::move(w2))},
                                     select(request, Machine::here()), device_));
  for (const int64_t tokens : {1, 30, 500}) {
    const std::vector<float> got = apply(moe, tokens);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto output = static_cast<int64_t>(i) % layer.hidden_size;
      ASSERT_EQ(std::isfinite(got[i]), output != kOutput) << tokens << " tokens, output " << output;
    }
  }
}

TEST_F(CudaExponentsTest, ReplacedWeightsGiveBitsOfAFreshLayer) {
  for (const char* scheme : {"mxfp8-w8a16", "mxfp8-w8a8"}) {
    const Request request = request_of(scheme);
    FusedMoe moe = make(request, 1), fresh = make(request, 2);
    must(moe.swap(must(moe.pack(weights_of(request.layer, 2)))));
    for (const int64_t tokens : {1, 30, 500}) {
      SCOPED_TRACE(std::string(scheme) + ", " + std::to_string(tokens) + " tokens");
      EXPECT_EQ(apply(moe, tokens), apply(fresh, tokens));
    }
  }
}

}  // namespace
}  // namespace moracle::cuda_exponents_test
