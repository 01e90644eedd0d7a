// Tests the Hopper backends for few, some and many tokens: results near those of cuda-reference,
// and graph replays with the bits of calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "conformance/conformance.h"
#include "kernels/cuda/cuda_test.h"
#include "kernels/cuda/planned_tokens.h"
#include "kernels/kernel_device.h"
#include "moe/moe_access.h"
#include "moracle/moe.h"
#include "oracle/kernel_plan.h"
#include "support/must.h"

namespace moracle::cuda_hopper_test {
namespace {

constexpr int64_t kMostTokens = 2000, kTopK = 4;
struct Sizes {
  int64_t hidden = 512, intermediate = 256, experts = 32, top_k = kTopK;
};

class CudaHopperTest : public CudaTest {
 protected:
  static Request request_of(const Scheme& scheme, const char* backend, Sizes sizes = {}) {
    Request request;
    request.layer.name = "layer";
    request.layer.num_experts = sizes.experts;
    request.layer.hidden_size = sizes.hidden;
    request.layer.intermediate_size = sizes.intermediate;
    request.layer.top_k = sizes.top_k;
    request.layer.scheme = scheme;
    request.max_num_tokens = kMostTokens;
    request.backend = backend;
    request.platform = Platform::kCuda;
    return request;
  }
  FusedMoe make(const Request& request) {
    return testing::must(FusedMoe::make(conformance::random_weights(request.layer, 5),
                                        select(request, Machine::here()), device_));
  }
  bool serves(const char* backend) {
    return select(request_of(*parse_scheme("bf16"), backend), Machine::here()).plan.has_value();
  }

  struct Batch {
    Buffer hidden, ids, weights, output;
    int64_t tokens, width;
  };
  Batch batch(const Request& request, int64_t tokens) {
    return upload_inputs(
        request, conformance::random_inputs(request, tokens, conformance::Spread::kHoles, 7),
        tokens);
  }
  Batch upload_inputs(const Request& request, const conformance::Inputs& all, int64_t tokens) {
    const int64_t width = request.layer.hidden_size;
    return {upload(to_bf16(all.hidden)),
            upload(all.ids),
            upload(all.weights),
            allocate(tokens * width * sizeof(float)),
            tokens,
            width};
  }
  std::vector<float> apply(FusedMoe& moe, const Batch& b) {
    call(moe, b);
    return download<float>(b.output);
  }
  void call(FusedMoe& moe, const Batch& b) {
    expect_done(moe.apply(bf16_matrix(b.hidden, b.tokens, b.width), {b.ids.as<int32_t>()},
                          {b.weights.as<float>()},
                          Matrix::f32(b.output.as<float>(), b.tokens, b.width)));
  }
};

// Both backends round activations to bf16 or 8 bits, but the values before differ in the last bits:
// the reference rounds gates, outputs and their products to bf16, three times by at most 2^-9. A
// change by d of a value moves its code of e4m3 by a step with probability d / step, and no step is
// larger than 2^-3 of the value. So the mean square of the changes is at most 3 · 2^-9 · 2^-3.
double tolerance(const Scheme& scheme) {
  if (!scheme.activation) return 0.01;
  return scheme.activation->dtype == DType::kI8 ? 0.015 : std::sqrt(3 * 0x1p-9 * 0x1p-3);
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double most) {
  double error = 0, all = 0;
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << "at " << i;
    error += std::pow(got[i] - want[i], 2), all += std::pow(want[i], 2);
  }
  EXPECT_GT(all, 0);
  EXPECT_LT(std::sqrt(error / all), most);
}

TEST_F(CudaHopperTest, EveryNumberOfTokensGivesResultsOfReferenceAndReplaysThem) {
  if (!serves("cuda-sm90")) GTEST_SKIP() << "cuda-sm90 does not serve this GPU";
  for (const char* name : {"bf16",
                           "int4-w4a16-g128",
                           "int4-w4a16-g128-asym",
                           "int4-w4a16-g32-asym",
                           "int8-w8a8",
                           "int8-w8a16-channel",
                           "fp8-w8a8-channel",
                           "fp8-w8a8-block128x128",
                           "fp8-w8a8-g128-token",
                           "mxfp4-w4a16",
                           "mxfp8-w8a16",
                           "mxfp8-w8a8",
                           "nvfp4-w4a16",
                           "int8-w8a16-g16-s8-6bit",
                           "int4-w4a16-g16-min-s8",
                           "int8-w8a16-g16-min",
                           "int4-w4a16-g32-asym-min-s8",
                           "int4-w4a8-g16-min-s8",
                           "int8-w8a8-g32-min",
                           "int4-w4a16-g32",
                           "int8-w8a16-g32-s16",
                           "int4-w4afp8-g128",
                           "int4-w4afp8-g128-asym",
                           "int4-w4afp8-channel",
                           "int4-w4afp8-g32-asym",
                           "int4-w4afp8-g32-asym-min-s8",
                           "int4-w4afp8-g16",
                           "mxfp4-w4afp8",
                           "nvfp4-w4afp8"}) {
    const Scheme scheme = *parse_scheme(name);
    FusedMoe moe = make(request_of(scheme, "cuda-sm90"));
    FusedMoe reference = make(request_of(scheme, "cuda-reference"));
    for (const int64_t tokens : {1, 8, 9, 12, 13, 50, 100, 300, 1000, 1300, 2000}) {
      SCOPED_TRACE(str(name, ", ", tokens, " tokens"));
      const Batch b = batch(request_of(scheme, "cuda-sm90"), tokens);
      const std::vector<float> want = apply(moe, b);
      expect_near(want, apply(reference, b), tolerance(scheme));
      const std::unique_ptr<Graph> graph = testing::must(device_->record(
          [&]() -> Status {
            call(moe, b);
            return {};
          },
          {}));
      for (int replay = 0; replay < 2; ++replay) {
        expect_done(graph->replay({}));
        EXPECT_EQ(download<float>(b.output), want) << "replay " << replay;
      }
    }
  }
}

// As for tokens from several ranks: quantized before they are sent, and added by another rank.
// Routings alternate, so a plan that is read too early belongs to the other routing.
TEST_F(CudaHopperTest, TokensPreparedBeforeAndRowsAddedAfterGiveBitsOfApply) {
  if (!serves("cuda-sm90")) GTEST_SKIP() << "cuda-sm90 does not serve this GPU";
  constexpr Sizes kOdd{448, 320};  // 3.5 and 2.5 blocks of 128 columns
  // GEMM 1 reads many tokens in the order of experts, and gathers prepared ones.
  constexpr Sizes kWide{512, 4096, 8, 2};
  const std::pair<const char*, Sizes> kLayers[] = {{"bf16", {}},
                                                   {"int8-w8a8", {}},
                                                   {"fp8-w8a8-channel", {}},
                                                   {"fp8-w8a8-block128x128", {}},
                                                   {"fp8-w8a8-block128x128", kWide},
                                                   {"fp8-w8a8-block128x128", kOdd},
                                                   {"mxfp8-w8a8", {}},
                                                   {"int4-w4afp8-g128", {}},
                                                   {"mxfp4-w4afp8", {}}};
  for (const auto& [name, sizes] : kLayers) {
    const Request request = request_of(*parse_scheme(name), "cuda-sm90", sizes);
    FusedMoe moe = make(request);
    bool fused = false;
    for (const int64_t tokens : {20, 50, 100, 300, 1000, 2000}) {
      if (!moe.plan().matrices[0].kernel->fuses(tokens)) continue;
      fused |= tokens == 300;
      SCOPED_TRACE(str(name, ", ", request.layer.hidden_size, " columns, ", tokens, " tokens"));
      std::vector<Batch> batches;
      std::vector<std::vector<float>> want;
      for (const uint64_t seed : {7, 8}) {
        batches.push_back(upload_inputs(
            request, conformance::random_inputs(request, tokens, conformance::Spread::kHoles, seed),
            tokens));
        want.push_back(apply(moe, batches.back()));
      }
      const Rows form = MoeAccess::prepared_form(moe, tokens);
      EXPECT_EQ(form.values.cols > 0, request.layer.scheme.activation.has_value());
      const Buffer codes = allocate(tokens * form.values.cols),
                   scales = allocate(tokens * form.num_scales * sizeof(float));
      for (int round = 0; round < 6; ++round) {
        const Batch& b = batches[round % 2];
        ExpertsCall call{.input = {bf16_matrix(b.hidden, tokens, b.width)},
                         .topk_ids = b.ids.as<int32_t>(),
                         .topk_weights = b.weights.as<float>()};
        if (form.values.cols > 0) {
          const Rows prepared{
              {codes.data(), form.values.dtype, tokens, form.values.cols, form.values.cols},
              scales.as<float>(),
              form.num_scales};
          expect_done(MoeAccess::prepare(moe, call.input.values, tokens, prepared, {}));
          call.input = prepared;
          call.form = ExpertsCall::Input::kPrepared;
        }
        const Matrix output = Matrix::f32(b.output.as<float>(), tokens, b.width);
        call.add = [&](const ExpertRows& rows) {
          return kernel_device(*device_).ops().combine(rows.values, rows.slot_row, rows.weights,
                                                       rows.top_k, output, {});
        };
        expect_done(MoeAccess::run(moe, std::move(call), {}));
        EXPECT_EQ(download<float>(b.output), want[round % 2]) << "round " << round;
      }
    }
    EXPECT_TRUE(fused) << name;
  }
}

TEST_F(CudaHopperTest, RowsThatEndWithinStageGiveResultsOfReference) {
  if (!serves("cuda-sm90")) GTEST_SKIP() << "cuda-sm90 does not serve this GPU";
  constexpr Sizes kSizes{544, 288};  // one k-block more than whole stages, for 4, 8 and 16 bits
  for (const char* name :
       {"bf16", "int4-w4a16-g32-asym", "int8-w8a8", "fp8-w8a8-channel", "mxfp4-w4a16",
        "mxfp8-w8a16", "mxfp8-w8a8", "int8-w8a16-g16-s8-6bit", "int4-w4a16-g16-min-s8",
        "int4-w4a8-g16-min-s8", "int4-w4a16-g32", "int8-w8a16-g32-s16", "int4-w4afp8-channel",
        "mxfp4-w4afp8", "nvfp4-w4afp8", "fp8-w8a8-block128x128", "fp8-w8a8-block32x128",
        "fp8-w8a8-g128-token"}) {
    const Scheme scheme = *parse_scheme(name);
    FusedMoe moe = make(request_of(scheme, "cuda-sm90", kSizes));
    FusedMoe reference = make(request_of(scheme, "cuda-reference", kSizes));
    for (const int64_t tokens : {1, 8, 12, 300, 2000}) {
      SCOPED_TRACE(str(name, ", ", tokens, " tokens"));
      const Batch b = batch(request_of(scheme, "cuda-sm90", kSizes), tokens);
      const std::vector<float> got = apply(moe, b);
      expect_near(got, apply(reference, b), tolerance(scheme));
    }
  }
}

// 125, 134, 260, 300 and 500 rows of an expert on average: one tile of 144 rows or two, products of
// 112 rows, and rows that TMA loads for GEMM 2.
TEST_F(CudaHopperTest, ExpertsOfManyRowsGiveResultsOfReference) {
  if (!serves("cuda-sm90")) GTEST_SKIP() << "cuda-sm90 does not serve this GPU";
  const auto check = [&](const char* name, Sizes sizes) {
    const Request request = request_of(*parse_scheme(name), "cuda-sm90", sizes);
    FusedMoe moe = make(request);
    FusedMoe reference = make(request_of(request.layer.scheme, "cuda-reference", sizes));
    for (const int64_t tokens : {500, 536, 1040, 1200, 2000}) {
      SCOPED_TRACE(str(name, ", ", sizes.hidden, " columns, ", tokens, " tokens"));
      const Batch b = upload_inputs(
          request, conformance::random_inputs(request, tokens, conformance::Spread::kUniform, 7),
          tokens);
      expect_near(apply(moe, b), apply(reference, b), tolerance(request.layer.scheme));
    }
  };
  for (const char* name :
       {"bf16", "int8-w8a8", "int8-w8a16-channel", "fp8-w8a8-channel", "mxfp4-w4a16", "mxfp8-w8a16",
        "mxfp8-w8a8", "nvfp4-w4a16", "int4-w4a16-g32", "int4-w4a16-g16-min-s8",
        "int4-w4afp8-channel", "mxfp4-w4afp8", "nvfp4-w4afp8", "fp8-w8a8-block128x128",
        "fp8-w8a8-g128-token"}) {
    check(name, {768, 384, 8, 2});
    check(name, {544, 288, 8, 2});
  }
  for (const char* name :
       {"int4-w4a16-g128", "int4-w4a16-g128-asym", "int4-w4a16-g64-asym", "int8-w8a16-g128",
        "fp8-w8a16-block128x128", "int4-w4afp8-g128-asym", "fp8-w8a8-block128x128-token"})
    check(name, {768, 384, 8, 2});
}

// Rows that end within the last k-block of a stage: codes are padded, scales of NVFP4 are not.
TEST_F(CudaHopperTest, RowsThatEndWithinBlockGiveResultsOfReference) {
  if (!serves("cuda-sm90")) GTEST_SKIP() << "cuda-sm90 does not serve this GPU";
  for (const auto& sizes : {Sizes{496, 752}, Sizes{272, 1008}}) {
    for (const char* name :
         {"nvfp4-w4a16", "nvfp4-w4a8", "nvfp4-w4afp8", "int4-w4a16-g16-min-s8"}) {
      const Scheme scheme = *parse_scheme(name);
      FusedMoe moe = make(request_of(scheme, "cuda-sm90", sizes));
      FusedMoe reference = make(request_of(scheme, "cuda-reference", sizes));
      for (const int64_t tokens : {1, 2, 8, 12, 300}) {
        SCOPED_TRACE(str(name, ", ", sizes.hidden, ", ", tokens, " tokens"));
        const Batch b = batch(request_of(scheme, "cuda-sm90", sizes), tokens);
        expect_near(apply(moe, b), apply(reference, b), tolerance(scheme));
      }
    }
  }
}

// Tiles of 16 rows. Up to eight rows of some types are multiplied by mma.sync, more by wgmma.
TEST_F(CudaHopperTest, RowsHaveTheSameBitsAmongFewAndAmongMore) {
  if (!serves("cuda-sm90")) GTEST_SKIP() << "cuda-sm90 does not serve this GPU";
  constexpr Sizes kSizes{2048, 1280, 40, 8};  // large enough for tiles of few rows
  constexpr int64_t kFew = 20;
  for (const char* name : {"bf16",
                           "f16",
                           "int8-w8a8",
                           "int8-w8a16-g128",
                           "int8-w8a16-g128-asym",
                           "int8-w8a16-g32",
                           "int4-w4a16-g128",
                           "int4-w4a16-g128-asym",
                           "int4-w4a16-channel-asym",
                           "int4-w4a16-g32",
                           "int4-w4a16-g32-asym",
                           "int4-w4a16-g16-min-s8",
                           "fp8-w8a8-channel",
                           "fp8-w8a8-block128x128",
                           "fp8-w8a8-g128-token",
                           "mxfp4-w4a16",
                           "nvfp4-w4a16",
                           "mxfp8-w8a16",
                           "mxfp8-w8a8",
                           "int4-w4afp8-g128",
                           "int4-w4afp8-g128-asym",
                           "mxfp4-w4afp8",
                           "nvfp4-w4afp8"}) {
    SCOPED_TRACE(name);
    const Request request = request_of(*parse_scheme(name), "cuda-sm90", kSizes);
    FusedMoe moe = make(request);
    const auto tokens =
        cuda::planned_tokens(*moe.plan().matrices[0].kernel, CudaForm::Kernel::kWgmma, true);
    ASSERT_TRUE(tokens && tokens->first <= kFew);
    conformance::Inputs all =
        conformance::random_inputs(request, 2 * kFew, conformance::Spread::kUniform, 7);
    std::copy_n(all.ids.begin(), kFew * kSizes.top_k, all.ids.begin() + kFew * kSizes.top_k);
    const std::vector<float> more = apply(moe, upload_inputs(request, all, 2 * kFew));
    all.hidden.resize(kFew * kSizes.hidden);
    all.ids.resize(kFew * kSizes.top_k), all.weights.resize(kFew * kSizes.top_k);
    const Batch few = upload_inputs(request, all, kFew);
    const std::vector<float> got = apply(moe, few);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), more.begin()));
    FusedMoe reference = make(request_of(request.layer.scheme, "cuda-reference", kSizes));
    expect_near(got, apply(reference, few), tolerance(request.layer.scheme));
  }
}

// The last block of a row has 64 columns, as in gpt-oss (2,880), 32, or 96; so has the last group
// of gates, and the second half of the rows of w13 begins within a block.
TEST_F(CudaHopperTest, BlocksThatEndWithinStageGiveResultsOfReferenceOnWgmma) {
  if (!serves("cuda-sm90")) GTEST_SKIP() << "cuda-sm90 does not serve this GPU";
  const Scheme scheme = *parse_scheme("fp8-w8a8-block128x128");
  for (const Sizes sizes :
       {Sizes{448, 320}, Sizes{576, 192}, Sizes{416, 224}, Sizes{608, 160}, Sizes{512, 320},
        Sizes{448, 256}, Sizes{64, 320}, Sizes{448, 1120}, Sizes{448, 4096, 8, 2}}) {
    const Request request = request_of(scheme, "cuda-sm90", sizes);
    FusedMoe moe = make(request);
    FusedMoe reference = make(request_of(scheme, "cuda-reference", sizes));
    EXPECT_TRUE(
        cuda::planned_tokens(*moe.plan().matrices[0].kernel, CudaForm::Kernel::kWgmma, true));
    for (const int64_t tokens : {1, 8, 60, 130, 300, 500, 2000}) {
      SCOPED_TRACE(str(sizes.hidden, " and ", sizes.intermediate, " columns, ", tokens, " tokens"));
      const Batch b = batch(request, tokens);
      const std::vector<float> got = apply(moe, b);
      expect_near(got, apply(reference, b), tolerance(scheme));
      EXPECT_EQ(apply(moe, b), got);
    }
  }
}

// As GGUF's Q4_K_M stores them: gate and up in one type, down in another.
TEST_F(CudaHopperTest, MatricesOfUnlikeSchemesGiveResultsOfReference) {
  if (!serves("cuda-sm90")) GTEST_SKIP() << "cuda-sm90 does not serve this GPU";
  const std::pair<const char*, const char*> kSchemes[] = {
      {"int4-w4a16-g32-asym-min-s8", "int8-w8a16-g16-s8-6bit"},
      {"int4-w4a16-g16-min-s8", "int4-w4a16-g16-s8"},
      {"int4-w4a16-g32-asym-min-s8", "int8-w8a16-g32-s16"}};
  for (const auto& schemes : kSchemes) {
    const char *const first = schemes.first, *const second = schemes.second;
    const auto request_for = [&](const char* backend) {
      Request request = request_of(*parse_scheme(first), backend);
      request.layer.stored = request.layer.matrices();
      request.layer.stored[1].key = parse_scheme(second)->weight;
      return request;
    };
    const Request request = request_for("cuda-sm90");
    FusedMoe moe = make(request), reference = make(request_for("cuda-reference"));
    EXPECT_TRUE(moe.plan().matrices[1].kernel->fuses(1));
    EXPECT_TRUE(moe.plan().matrices[1].kernel->fuses(kMostTokens));
    for (const int64_t tokens : {1, 8, 12, 50, 300, 2000}) {
      SCOPED_TRACE(str(first, ", ", second, ", ", tokens, " tokens"));
      const Batch b = batch(request, tokens);
      const std::vector<float> got = apply(moe, b);
      expect_near(got, apply(reference, b), tolerance(request.layer.scheme));
    }
  }
}

TEST_F(CudaHopperTest, ExpertsNamedTwiceByTokenCountTwice) {
  if (!serves("cuda-sm90")) GTEST_SKIP() << "cuda-sm90 does not serve this GPU";
  for (const char* name : {"bf16", "int8-w8a8", "mxfp4-w4a16"}) {
    const Scheme scheme = *parse_scheme(name);
    const Request request = request_of(scheme, "cuda-sm90");
    FusedMoe moe = make(request), reference = make(request_of(scheme, "cuda-reference"));
    for (const int64_t tokens : {1, 8, 12}) {
      SCOPED_TRACE(str(name, ", ", tokens, " tokens"));
      conformance::Inputs inputs =
          conformance::random_inputs(request, tokens, conformance::Spread::kHoles, 7);
      for (int64_t t = 0; t < tokens; ++t)
        inputs.ids[t * kTopK + 2] = inputs.ids[t * kTopK] = static_cast<int32_t>(t % 5);
      const Batch b = upload_inputs(request, inputs, tokens);
      const std::vector<float> got = apply(moe, b);
      expect_near(got, apply(reference, b), tolerance(scheme));
    }
  }
}

// CTAs for few tokens then have several units of GEMM 1, which end within a round of their warps.
// Clusters have several panels of GEMM 2.
TEST_F(CudaHopperTest, SharesOfSeveralUnitsGiveResultsOfReferenceAndReplaysThem) {
  if (!serves("cuda-sm90")) GTEST_SKIP() << "cuda-sm90 does not serve this GPU";
  constexpr Sizes kSizes{2176, 1600};
  for (const char* name : {"bf16", "int4-w4a16-g128", "int4-w4a16-g16-min", "int8-w8a8"}) {
    const auto request_for = [&](const char* backend) {
      Request request = request_of(*parse_scheme(name), backend, kSizes);
      request.layer.num_experts = 8;
      request.max_num_tokens = 16;
      return request;
    };
    const Request request = request_for("cuda-sm90");
    FusedMoe moe = make(request), reference = make(request_for("cuda-reference"));
    for (const int64_t tokens : {1, 2, 8, 12}) {
      SCOPED_TRACE(str(name, ", ", tokens, " tokens"));
      const Batch b = batch(request, tokens);
      const std::vector<float> want = apply(moe, b);
      expect_near(want, apply(reference, b), tolerance(request.layer.scheme));
      const std::unique_ptr<Graph> graph = testing::must(device_->record(
          [&]() -> Status {
            call(moe, b);
            return {};
          },
          {}));
      for (int replay = 0; replay < 2; ++replay) {
        expect_done(graph->replay({}));
        EXPECT_EQ(download<float>(b.output), want) << "replay " << replay;
      }
    }
  }
}

// The CTAs of a cluster then split K of a tile of GEMM 2.
TEST_F(CudaHopperTest, FewLargeExpertsGiveResultsOfReferenceAndReplaysThem) {
  if (!serves("cuda-sm90")) GTEST_SKIP() << "cuda-sm90 does not serve this GPU";
  constexpr int64_t kExperts = 8, kEach = 2;
  for (const auto& [name, hidden] : {std::pair{"int4-w4a16-g128", 2560},
                                     {"int4-w4a16-g128-asym", 2560},
                                     {"nvfp4-w4a16", 2560},
                                     {"mxfp4-w4a16", 4096},
                                     {"mxfp8-w8a16", 4096},
                                     {"int4-w4a16-g16-min-s8", 4096}}) {
    const Sizes sizes{hidden, 4096, kExperts, kEach};
    const auto request_for = [&](const char* backend) {
      Request request = request_of(*parse_scheme(name), backend, sizes);
      request.max_num_tokens = 64;
      return request;
    };
    const Request request = request_for("cuda-sm90");
    FusedMoe moe = make(request), reference = make(request_for("cuda-reference"));
    const auto planned =
        cuda::planned_tokens(*moe.plan().matrices[1].kernel, CudaForm::Kernel::kWgmma, true);
    ASSERT_TRUE(planned && planned->first <= 16) << name;
    for (const int64_t tokens : {16, 32}) {
      SCOPED_TRACE(str(name, ", ", tokens, " tokens"));
      conformance::Inputs inputs =
          conformance::random_inputs(request, tokens, conformance::Spread::kHoles, 7);
      for (int64_t t = 0; t < tokens; ++t) {  // expert 0 has as many rows as a tile, or two
        inputs.ids[t * kEach] = 0;
        inputs.ids[t * kEach + 1] = static_cast<int32_t>(1 + t % (kExperts - 1));
      }
      const Batch b = upload_inputs(request, inputs, tokens);
      const std::vector<float> want = apply(moe, b);
      expect_near(want, apply(reference, b), 0.01);
      const std::unique_ptr<Graph> graph = testing::must(device_->record(
          [&]() -> Status {
            call(moe, b);
            return {};
          },
          {}));
      expect_done(graph->replay({}));
      EXPECT_EQ(download<float>(b.output), want);
    }
  }
}

}  // namespace
}  // namespace moracle::cuda_hopper_test
