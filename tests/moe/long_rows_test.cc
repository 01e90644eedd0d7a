// Tests rows of several k-blocks and experts of several row tiles. State carried between k-blocks
// and between panel pairs must be right in every arithmetic.
#include <gtest/gtest.h>

#include "layout/layout.h"
#include "moe/layer_on_rows.h"
#include "oracle/backend.h"
#include "support/sample.h"

namespace moracle::long_rows_test {
namespace {

TEST(LongRows, HoldWhenUnpackedInRuns) {
  const conformance::Shape shape{2, 1100, 48, 1};
  const auto device = open_device("cpu", 2);
  ASSERT_TRUE(device);
  const std::pair<const char*, const char*> cases[] = {{"int4-w4a8-g128", "plain"},
                                                       {"int4-w4a16-g128", "plain"},
                                                       {"int4-w4a16-g128", "bf16-activations"},
                                                       {"int4-w4a8-g64-asym", "plain"},
                                                       {"int8-w8a16-channel", "plain"},
                                                       {"int8-w8a16-channel", "bf16-activations"},
                                                       {"mxfp4-w4a8", "plain"},
                                                       {"mxfp4-w4a16", "plain"},
                                                       {"mxfp4-w4a16", "bf16-activations"},
                                                       {"fp8-w8a8-block128x128", "plain"},
                                                       {"int8-w8a8", "plain"},
                                                       {"bf16", "plain"},
                                                       {"bf16", "bf16-activations"}};
  int passed = 0;
  for (const auto& [text, variant] : cases) {
    SCOPED_TRACE(std::string(text) + ", " + variant);
    const auto scheme = parse_scheme(text);
    ASSERT_TRUE(scheme);
    for (const Backend& row : backends()) {
      if (!row.built() || row.layout->name != "vnni16") continue;
      // One block of rows, and several.
      for (const int64_t tokens : {20, 70}) {
        const conformance::Outcome outcome = conformance::run(
            {row.name, *scheme, shape, tokens, conformance::Spread::kUniform, variant}, *device);
        EXPECT_NE(outcome.kind, conformance::Outcome::kFailed) << outcome.message;
        passed += outcome.kind == conformance::Outcome::kPassed;
      }
    }
  }
  if (passed == 0) GTEST_SKIP() << "no backend with layout vnni16 serves on this CPU";
}

// Scales as integers or f16: few rows of an expert are multiplied by super-blocks of 256 columns,
// the last of which is short. More rows are multiplied by unpacked codes, or by unpacked codes
// times scales.
TEST(LongRows, HoldWithStoredScales) {
  const conformance::Shape shape{2, 1088, 352, 1};
  const auto device = open_device("cpu", 2);
  ASSERT_TRUE(device);
  int passed = 0;
  for (const char* const text :
       {"int4-w4a16-g32-asym-min-s8", "int4-w4a8-g32-asym-min-s8", "int4-w4a16-g16-s8",
        "int4-w4a8-g16-min-s8", "int8-w8a16-g32-min-s8-u5bit", "int8-w8a8-g32-min-s8-u5bit",
        "int8-w8a16-g16-s8-6bit", "int8-w8a8-g16-s8-6bit", "int8-w8a16-g32-s8-iq4",
        "int8-w8a8-g32-s8-iq4", "int8-w8a16-g32-s8-iq3xxs", "int8-w8a8-g16-s8-iq2",
        "int8-w8a16-g32-s16", "int8-w8a8-g32-s16", "int4-w4a16-g32-s16", "int4-w4a8-g32-s16",
        "int8-w8a16-g32-s16-iq4", "int8-w8a8-g32-s16-iq4"}) {
    SCOPED_TRACE(text);
    const auto scheme = parse_scheme(text);
    ASSERT_TRUE(scheme);
    testing::Sample sample(text);
    for (const Backend& row : backends()) {
      if (!row.built() || row.layout->name != "vnni16") continue;
      for (const int64_t tokens : {1, 2, 7, 70}) {
        if (!sample.takes()) continue;
        const conformance::Outcome outcome = conformance::run(
            {row.name, *scheme, shape, tokens, conformance::Spread::kUniform, "plain"}, *device);
        EXPECT_NE(outcome.kind, conformance::Outcome::kFailed) << outcome.message;
        passed += outcome.kind == conformance::Outcome::kPassed;
      }
    }
  }
  if (passed == 0) GTEST_SKIP() << "no backend with layout vnni16 serves on this CPU";
}

// A batch-invariant plan has one arithmetic. It has integer scales where these are faster for many
// rows, too. Otherwise only few rows are multiplied with integer scales.
TEST(LongRows, PlanIntegerScalesForSkinnyGemmUnlessBatchInvariant) {
  const auto machine = Machine::find("xeon-amx");
  ASSERT_TRUE(machine);
  const struct {
    const char* scheme;
    bool many_rows_on_amx;
  } cases[] = {{"int4-w4a16-g32-asym-min-s8", false},
               {"int8-w8a16-g16-s8-6bit", true},
               {"int8-w8a8-g16-s8-6bit", true}};
  for (const auto& [text, many_rows_on_amx] : cases) {
    for (const char* const backend : {"cpu-amx", "cpu-avx512", "cpu-avx2"}) {
      SCOPED_TRACE(std::string(text) + ", " + backend);
      Request request;
      request.layer = {.name = "layer",
                       .num_experts = 2,
                       .hidden_size = 512,
                       .intermediate_size = 256,
                       .top_k = 1,
                       .scheme = *parse_scheme(text)};
      request.backend = backend;
      const auto plan_of = [&] { return select(request, *machine).plan->matrices[0]; };
      const MatrixPlan fast = plan_of();
      ASSERT_EQ(fast.kernels.size(), 2u);
      EXPECT_NE(fast.kernels[0].name.find("exact sums of 256 columns"), std::string::npos)
          << fast.kernels[0].name;
      const bool tiles = many_rows_on_amx && std::string_view(backend) == "cpu-amx";
      EXPECT_EQ(fast.kernel->deterministic, tiles);
      request.deterministic = true;
      const MatrixPlan same = plan_of();
      EXPECT_TRUE(same.kernel->deterministic);
      for (const auto& kernel : same.kernels)
        EXPECT_EQ(kernel.name.find("256 columns") != std::string::npos, tiles) << kernel.name;
    }
  }
}

// product_bits is 8 only if bf16 activations are requested; otherwise it is 16, or 24 in limbs.
TEST(Bf16Activations, RoundedOnlyOnRequest) {
  const auto machine = Machine::find("xeon-amx");
  ASSERT_TRUE(machine);
  for (const std::string_view text :
       {"bf16", "int4-w4a16-g128", "mxfp4-w4a16", "int8-w8a16-g16-s8-6bit", "int8-w8a8"}) {
    Request request;
    request.layer = testing::odd_layer(*parse_scheme(text));
    request.backend = "cpu-amx";
    auto product_bits = [&] {
      const Selection selection = select(request, *machine);
      EXPECT_TRUE(selection.plan) << text;
      return selection.plan ? selection.plan->matrices[0].product_bits : 0;
    };
    const bool floats = !request.layer.scheme.activation;
    EXPECT_EQ(product_bits(), !floats || text.ends_with("s8-6bit") ? 24 : 16) << text;
    request.bf16_activations = true;
    EXPECT_EQ(product_bits(), floats ? 8 : 24) << text;
    request.backend = "cpu";
    EXPECT_EQ(product_bits(), 24) << text;
  }
}

// int16 activations run only on request, only with integer and fp4 weights, and then for any number
// of rows.
TEST(Bf16Activations, AllowInt16OnAvx2) {
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx2 | Isa::kAvxVnni}) {
    Machine machine;
    machine.cpu = {"a CPU", isa, 2, int64_t{1} << 34};
    for (const char* text : {"int4-w4a16-g128", "int8-w8a16-channel", "mxfp4-w4a16", "bf16",
                             "fp8-w8a16-channel", "int8-w8a8"}) {
      SCOPED_TRACE(text);
      Request request;
      request.layer = testing::odd_layer(*parse_scheme(text));
      request.backend = "cpu-avx2";
      const auto matrix = [&] { return select(request, machine).plan->matrices[0]; };
      EXPECT_EQ(matrix().product_bits, 24);
      EXPECT_EQ(matrix().reason, "");
      request.bf16_activations = true;
      const MatrixPlan plan = matrix();
      const bool int16 = plan.product_bits == 15;
      EXPECT_EQ(int16, std::string_view(text).find("a16") != std::string_view::npos &&
                           !std::string_view(text).starts_with("fp8"));
      EXPECT_EQ(plan.kernel->product_group > 0, int16);
      EXPECT_EQ(plan.reason.starts_with("int16 products: "), int16) << plan.reason;
      if (int16) {
        ASSERT_EQ(plan.kernels.size(), 1u);
        EXPECT_TRUE(plan.kernel->deterministic);
        EXPECT_TRUE(plan.kernels[0].name.ends_with(
            isa == Isa::kAvx2 ? "codes, floats as i16, exact sums, avx2_madd"
                              : "codes, floats as i16, exact sums, avx_vnni_words"))
            << plan.kernels[0].name;
      }
    }
  }
}

}  // namespace
}  // namespace moracle::long_rows_test
