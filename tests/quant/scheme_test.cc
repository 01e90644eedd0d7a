// Tests that names of schemes can be parsed again, and that errors list the grammar.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "conformance/conformance.h"
#include "moracle/quant.h"

namespace moracle::scheme_test {
namespace {

using ::testing::HasSubstr;

constexpr QuantKey without_symmetry(QuantKey key) {
  key.symmetric = false;
  return key;
}

constexpr QuantKey with_minimums(QuantKey key) {
  key.minimums = true;
  return key;
}

TEST(Scheme, NamesRoundTrip) {
  for (const Scheme& scheme : conformance::schemes()) {
    const auto parsed = parse_scheme(name(scheme));
    ASSERT_TRUE(parsed) << name(scheme);
    EXPECT_EQ(*parsed, scheme) << name(scheme);
  }
}

// The scheme of quant_method "fp8" with weight_block_size [1, 128].
TEST(Scheme, Fp8WeightGroupsGoWithActivationGroups) {
  const Scheme scheme{fp8_static_block(1, 128), fp8_dynamic_group(128)};
  EXPECT_EQ(name(scheme), "fp8-w8a8-g128");
  EXPECT_EQ(*parse_scheme("fp8-w8a8-g128"), scheme);
}

TEST(Scheme, NamesAndDescriptionsAreDistinct) {
  std::set<std::string> names, descriptions;
  for (const Scheme& scheme : conformance::schemes()) {
    names.insert(name(scheme));
    descriptions.insert(describe(scheme));
  }
  EXPECT_EQ(names.size(), conformance::schemes().size());
  EXPECT_EQ(descriptions.size(), names.size());
}

TEST(Scheme, UsesCommonNamesOfTheField) {
  EXPECT_EQ(name(Scheme{kBF16Weight, {}}), "bf16");
  EXPECT_EQ(name(Scheme{kF16Weight, {}}), "f16");
  EXPECT_EQ(name(Scheme{kF32Weight, {}}), "f32");
  EXPECT_EQ(name(Scheme{kInt8StaticChannelSym, kInt8DynamicTokenSym}), "int8-w8a8");
  EXPECT_EQ(name(Scheme{kInt8StaticChannelSym, {}}), "int8-w8a16-channel");
  EXPECT_EQ(name(Scheme{int4_static_group(128), {}}), "int4-w4a16-g128");
  EXPECT_EQ(name(Scheme{int4_static_group(GroupShape::kAll), {}}), "int4-w4a16-channel");
  EXPECT_EQ(name(Scheme{without_symmetry(int8_static_group(64)), {}}), "int8-w8a16-g64-asym");
  EXPECT_EQ(name(Scheme{with_minimums(without_symmetry(int4_static_group(32))), {}}),
            "int4-w4a16-g32-asym-min");
  EXPECT_EQ(name(Scheme{with_minimums(int8_static_group(16)), {}}), "int8-w8a16-g16-min");
  EXPECT_EQ(name(Scheme{with_scales(int8_static_group(32), DType::kF16), {}}),
            "int8-w8a16-g32-s16");
  EXPECT_EQ(name(Scheme{with_scales(int8_static_group(16), DType::kI8), {}}), "int8-w8a16-g16-s8");
  EXPECT_EQ(name(Scheme{int4_static_group(128), kInt8DynamicTokenSym}), "int4-w4a8-g128");
  EXPECT_EQ(name(Scheme{kMxfp4Static, kInt8DynamicTokenSym}), "mxfp4-w4a8");
  EXPECT_EQ(name(Scheme{kMxfp4Static, kFp8DynamicTokenSym}), "mxfp4-w4afp8");
  EXPECT_EQ(name(Scheme{kNvfp4Static, kFp8DynamicTokenSym}), "nvfp4-w4afp8");
  EXPECT_EQ(name(Scheme{kNvfp4Static, {}}), "nvfp4-w4a16");
  EXPECT_EQ(name(Scheme{kInt8StaticChannelSym, kInt8StaticTensorSym}), "int8-w8a8-channel-static");
  EXPECT_EQ(*parse_scheme("int8-w8a8-channel-static"),
            (Scheme{kInt8StaticChannelSym, kInt8StaticTensorSym}));
  EXPECT_EQ(*parse_scheme("nvfp4-w4a8"), (Scheme{kNvfp4Static, kInt8DynamicTokenSym}));
  EXPECT_EQ(name(Scheme{int8_static_group(128), kInt8DynamicTokenSym}), "int8-w8a8-g128");
  EXPECT_EQ(name(Scheme{int4_static_group(128), kFp8DynamicTokenSym}), "int4-w4afp8-g128");
  EXPECT_EQ(name(Scheme{kInt8StaticChannelSym, kFp8DynamicTokenSym}), "int8-w8afp8-channel");
  EXPECT_EQ(*parse_scheme("int8-w8afp8-channel"),
            (Scheme{kInt8StaticChannelSym, kFp8DynamicTokenSym}));
  const Scheme by_token{{DType::kF8E4M3, per_group(128)}, kFp8DynamicTokenSym};
  EXPECT_EQ(name(by_token), "fp8-w8a8-g128-token");
  EXPECT_EQ(*parse_scheme("fp8-w8a8-g128-token"), by_token);
  EXPECT_EQ(name(Scheme{kFp8Static128BlockSym, kFp8DynamicTokenSym}),
            "fp8-w8a8-block128x128-token");
  EXPECT_EQ(*parse_scheme("int8-w8a8-g128"),
            (Scheme{int8_static_group(128), kInt8DynamicTokenSym}));
}

TEST(Scheme, DescriptionsAreReadable) {
  EXPECT_EQ(describe(Scheme{kBF16Weight, {}}), "bf16 weights, not quantized");
  EXPECT_EQ(describe(Scheme{kInt8StaticChannelSym, kInt8DynamicTokenSym}),
            "int8 weights per channel, int8 activations per token, dynamic");
  EXPECT_EQ(describe(Scheme{without_symmetry(int4_static_group(64)), {}}),
            "int4 weights per group of 64 with zero points, floating-point activations");
  EXPECT_EQ(describe(*parse_scheme("int8-w8a16-g32-min")),
            "int8 weights per group of 32 with minimums, floating-point activations");
  EXPECT_EQ(describe(*parse_scheme("int4-w4a8-g32-asym-min")),
            "int4 weights per group of 32 with zero points and minimums, int8 activations per "
            "token, dynamic");
}

TEST(Scheme, ParsesOtherWordOrders) {
  EXPECT_EQ(*parse_scheme("w8a8-int8"), *parse_scheme("int8-w8a8"));
}

// Weight-only and quantized activations with equal weights are two schemes.
TEST(Scheme, ActivationsArePartOfTheScheme) {
  const Scheme weight_only = *parse_scheme("int8-w8a16-channel");
  const Scheme both = *parse_scheme("int8-w8a8");
  EXPECT_EQ(weight_only.weight, both.weight);
  EXPECT_FALSE(weight_only == both);
  EXPECT_FALSE(weight_only.activation);
  EXPECT_TRUE(both.activation->dynamic);
}

TEST(Scheme, RejectsOtherNamesAndListsGrammar) {
  for (const char* text : {"",
                           "-",
                           "int4",
                           "INT8-W8A8",
                           "int4-w4a16",
                           "int4-w4a16-",
                           "int4-w4a16-g",
                           "int4-w4a16-g0",
                           "int4-w4a16-g-32",
                           "int4-w4a16-g32x",
                           "int4-w4a16-g 32",
                           "int4-w4a16-g32-sym",
                           "int4-w4a16-asym",
                           "int4-w4a16--asym",
                           "int4-w4a16-g32-asym-asym",
                           "int4-w4a4-g32",
                           "int8-w4a16-g32",
                           "int8-w8a16",
                           "int8-w8a8-channel",
                           "int4-w4a8-g128-static",
                           "int4-w4afp8",
                           "fp8-w8afp8-channel",
                           "fp8-w8a8-channel-token",
                           "fp8-w8a16-g128-token",
                           "fp8-w8a8-g128-token-static",
                           "int4-w4afp8-g128-token",
                           "int8-w8a8-asym",
                           "bf16 ",
                           " bf16",
                           "bf16-w16a16",
                           "fp8",
                           "mxfp4",
                           "int4-w4a16-g99999999999999999999",
                           "int4-w4a16-g9223372036854775807",
                           "fp8-w8a8-block2147483648x1",
                           "fp8-w8a8-block128",
                           "mxfp8-w8a8-g32",
                           "fp8-w8a8-channel-asym"}) {
    const auto parsed = parse_scheme(text);
    ASSERT_FALSE(parsed) << text;
    const Error& error = parsed.error();
    EXPECT_EQ(error.kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(error.place, HasSubstr("'" + std::string(text) + "'"));
    for (const char* known : {"bf16", "f16", "f32", "int8-w8a8", "int8-w8a16-", "int4-w4a16-",
                              "channel", "g<size>", "-asym"}) {
      EXPECT_THAT(error.need, HasSubstr(known)) << text;
    }
  }
}

TEST(QuantKey, AllButFloatFormatsAreQuantized) {
  EXPECT_FALSE(kF32Weight.quantized());
  EXPECT_FALSE(kF16Weight.quantized());
  EXPECT_FALSE(kBF16Weight.quantized());
  EXPECT_TRUE(kInt8StaticChannelSym.quantized());
  EXPECT_TRUE(int4_static_group(32).quantized());
  EXPECT_TRUE(QuantKey{DType::kF8E4M3}.quantized());
}

TEST(QuantKey, ComparesEveryPart) {
  const QuantKey key = int4_static_group(32);
  QuantKey other = key;
  other.dtype = DType::kI8;
  EXPECT_NE(key, other);
  other = key;
  other.group.cols = 64;
  EXPECT_NE(key, other);
  other = key;
  other.group.rows = 2;
  EXPECT_NE(key, other);
  other = key;
  other.dynamic = true;
  EXPECT_NE(key, other);
  other = key;
  other.symmetric = false;
  EXPECT_NE(key, other);
  other = key;
  other.scale_dtype = DType::kF8E8M0;
  EXPECT_NE(key, other);
}

}  // namespace
}  // namespace moracle::scheme_test
