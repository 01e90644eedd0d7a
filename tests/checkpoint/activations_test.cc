// Tests schemes whose activations differ from the file's, and which stored tensors they keep.
#include "checkpoint/producers/ct_synthetic.h"
#include "reader_fixture.h"

namespace moracle::testing::activations_test {
namespace {

Scheme scheme_after(SyntheticCheckpoint checkpoint, ActivationPrecision precision) {
  DescribedWeights weights = must(checkpoint.experts());
  set_activations(weights, precision);
  EXPECT_EQ(weights.w13.scheme(), weights.spec.scheme);
  EXPECT_EQ(weights.w2.scheme(), weights.spec.scheme);
  return weights.spec.scheme;
}

TEST(Activations, SixteenBitMakesEveryQuantizedSchemeWeightOnly) {
  const std::pair<SyntheticCheckpoint, const char*> files[] = {
      {ct_checkpoint(ct_fp8("tensor", "tensor")), "fp8-w8a16-tensor"},
      {ct_checkpoint(ct_fp8("channel", "token")), "fp8-w8a16-channel"},
      {ct_checkpoint(ct_fp8("block", "group")), "fp8-w8a16-block8x16"},
      {ct_mxfp8_checkpoint(32), "mxfp8-w8a16"},
      {ct_checkpoint(ct_int8("channel", "token")), "int8-w8a16-channel"},
      {ct_checkpoint({.activations = "token"}), "int4-w4a16-g8"},
      {ct_checkpoint({.activations = "token", .activation_type = "float"}), "int4-w4a16-g8"},
      {ct_checkpoint(ct_packed()), "int4-w4a16-g8"},
      {SyntheticCheckpoint::plain(), "bf16"}};
  for (const auto& [checkpoint, name_after] : files)
    EXPECT_EQ(name(scheme_after(checkpoint, ActivationPrecision::k16Bit)), name_after);
}

TEST(Activations, SixteenBitKeepsWeightsAndDropsActivationScales) {
  const auto checkpoint = ct_checkpoint(ct_fp8("tensor", "tensor"));
  const DescribedWeights stored = must(checkpoint.experts());
  DescribedWeights asked = must(checkpoint.experts());
  EXPECT_EQ(asked.w13.input_scales().size(), 2u);
  set_activations(asked, ActivationPrecision::k16Bit);
  EXPECT_TRUE(asked.w13.input_scales().empty());
  EXPECT_TRUE(asked.w2.input_scales().empty());
  EXPECT_EQ(asked.w13.shape(), stored.w13.shape());
  const CanonicalMatrix want = must(stored.w13.expert(1)), got = must(asked.w13.expert(1));
  EXPECT_TRUE(std::ranges::equal(got.codes, want.codes));
  EXPECT_EQ(got.scales, want.scales);
}

TEST(Activations, Int8NeedsIntegerWeightsWithFloatActivations) {
  const auto int8 = ActivationPrecision::kInt8;
  EXPECT_EQ(name(scheme_after(ct_checkpoint(ct_packed()), int8)), "int4-w4a8-g8");
  EXPECT_EQ(name(scheme_after(ct_checkpoint(ct_fp8("channel", "")), int8)), "fp8-w8a16-channel");
  EXPECT_EQ(
      name(scheme_after(ct_checkpoint({.activations = "token", .activation_type = "float"}), int8)),
      "int4-w4afp8-g8");
}

TEST(Activations, Fp8NeedsIntegerWeightsWithFloatActivations) {
  const auto fp8 = ActivationPrecision::kFp8;
  EXPECT_EQ(name(scheme_after(ct_checkpoint(ct_packed()), fp8)), "int4-w4afp8-g8");
  EXPECT_EQ(name(scheme_after(ct_checkpoint(ct_fp8("channel", "")), fp8)), "fp8-w8a16-channel");
  EXPECT_EQ(name(scheme_after(ct_checkpoint({.activations = "token"}), fp8)), "int4-w4a8-g8");
  EXPECT_EQ(name(scheme_after(SyntheticCheckpoint::plain(), fp8)), "bf16");
}

TEST(Activations, StoredAndBf16KeepScheme) {
  for (const auto same : {ActivationPrecision::kStored, ActivationPrecision::kBf16}) {
    EXPECT_EQ(name(scheme_after(ct_checkpoint(ct_packed()), same)), "int4-w4a16-g8");
    EXPECT_EQ(name(scheme_after(ct_checkpoint(ct_fp8("tensor", "tensor")), same)),
              "fp8-w8a8-tensor-static");
  }
}

TEST(Activations, ParsesNamesAndListsThemOnError) {
  EXPECT_EQ(must(parse_activations("")), ActivationPrecision::kStored);
  EXPECT_EQ(must(parse_activations("bf16")), ActivationPrecision::kBf16);
  EXPECT_EQ(must(parse_activations("int8")), ActivationPrecision::kInt8);
  EXPECT_EQ(must(parse_activations("fp8")), ActivationPrecision::kFp8);
  EXPECT_EQ(must(parse_activations("16bit")), ActivationPrecision::k16Bit);
  for (const char* text : {"16", "f16", "fp4", " 16bit"}) {
    const auto refused = parse_activations(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().need, "bf16, int8, fp8 or 16bit");
  }
}

}  // namespace
}  // namespace moracle::testing::activations_test
