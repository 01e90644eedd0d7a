// Tests experts from tensors in memory: values, use in place, and errors by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <numeric>

#include "moracle/checkpoint.h"
#include "quant/codec.h"

namespace moracle::stored_experts_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kExperts = 3, kHidden = 64, kInner = 32;

template <class T>
TensorView view(const std::vector<T>& values, DType dtype, std::vector<int64_t> shape) {
  return {reinterpret_cast<const std::byte*>(values.data()), dtype, std::move(shape)};
}

// w1 [3, 64, 64] and w2 [3, 64, 32] of bytes and of floats, with scales of ones.
class StoredExpertsTest : public ::testing::Test {
 protected:
  StoredExpertsTest() : floats(kExperts * kHidden * kHidden), bytes(floats.size()), ones(4096, 1) {
    for (size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(i % 251) - 125;
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 % 120);
  }
  template <class T>
  StoredExperts stored(const std::vector<T>& values, DType dtype, int64_t codes_per_byte = 1) {
    StoredExperts experts;
    experts.w13 = {.name = "w1", .input_name = "a1_scale"};
    experts.w2 = {.name = "w2", .input_name = "a2_scale"};
    experts.w13.weight = view(values, dtype, {kExperts, 2 * kInner, kHidden / codes_per_byte});
    experts.w2.weight = view(values, dtype, {kExperts, kHidden, kInner / codes_per_byte});
    return experts;
  }
  void add_scales(StoredExperts& experts, std::vector<int64_t> w13, std::vector<int64_t> w2) {
    experts.w13.scales = view(ones, DType::kF32, std::move(w13));
    experts.w2.scales = view(ones, DType::kF32, std::move(w2));
  }
  static Result<DescribedWeights> described(StoredExperts experts, std::string_view scheme) {
    LayerSpec spec{.name = "experts", .top_k = 2};
    spec.scheme = *parse_scheme(scheme);
    return describe(std::move(experts), std::move(spec));
  }
  static void expect_refusal(StoredExperts experts, std::string_view scheme, const char* text) {
    const auto weights = described(std::move(experts), scheme);
    ASSERT_FALSE(weights.ok()) << "accepted, though it should say: " << text;
    EXPECT_EQ(weights.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(weights.error().to_string(), HasSubstr(text));
  }
  static std::vector<double> row(const CanonicalMatrix& matrix, int64_t r) {
    std::vector<double> values(matrix.k);
    dequantize_row(matrix, r, values.data());
    return values;
  }

  std::vector<float> floats;
  std::vector<uint8_t> bytes;
  std::vector<float> ones;
};

TEST_F(StoredExpertsTest, SizesComeFromTensors) {
  const auto weights = described(stored(floats, DType::kF32), "f32");
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  const LayerSpec& spec = weights->spec;
  EXPECT_EQ(spec.num_experts, kExperts);
  EXPECT_EQ(spec.hidden_size, kHidden);
  EXPECT_EQ(spec.intermediate_size, kInner);
  EXPECT_FALSE(spec.bias);
  EXPECT_EQ(weights->w13.source_bytes(), kExperts * 2 * kInner * kHidden * 4);
}

// Tensors that the host cannot reach: each view is shifted to addresses that no program has.
TEST_F(StoredExpertsTest, TensorsElsewhereAreReadExpertByExpert) {
  constexpr int64_t kShift = int64_t{1} << 60;
  std::vector<int32_t> index(kExperts * kHidden);
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int32_t>((i + 1) % 2);
  const auto with_scales = [&](const char* scheme) {
    const bool fp8 = std::string_view(scheme).starts_with("fp8");
    StoredExperts experts = stored(bytes, fp8 ? DType::kF8E4M3 : DType::kU8);
    add_scales(experts, {kExperts, 2 * kInner, fp8 ? 1 : 2}, {kExperts, kHidden, 1});
    if (!fp8) {
      experts.w13.group_index = view(index, DType::kI32, {kExperts, kHidden});
    }
    return experts;
  };
  for (const char* scheme : {"fp8-w8a16-channel", "int8-w8a16-g32"}) {
    const auto here = described(with_scales(scheme), scheme);
    ASSERT_TRUE(here.ok()) << here.error().to_string();
    StoredExperts far = with_scales(scheme);
    for (StoredMatrix* matrix : {&far.w13, &far.w2}) {
      for (TensorView* tensor : {&matrix->weight, &matrix->scales, &matrix->group_index})
        if (tensor->data != nullptr) tensor->data += kShift;
    }
    size_t largest = 0;
    far.read = [&](void* to, const void* from, size_t count) {
      largest = std::max(largest, count);
      std::memcpy(to, static_cast<const std::byte*>(from) - kShift, count);
      return Status();
    };
    const auto there = described(std::move(far), scheme);
    ASSERT_TRUE(there.ok()) << there.error().to_string();
    EXPECT_LE(largest, kHidden * sizeof(int32_t)) << "describe reads no weights";
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto want = here->w13.expert(e), got = there->w13.expert(e);
      ASSERT_TRUE(got.ok()) << got.error().to_string();
      EXPECT_EQ(got->group_index, want->group_index);
      for (int64_t r = 0; r < want->n; ++r) EXPECT_EQ(row(*got, r), row(*want, r));
    }
    EXPECT_EQ(largest, size_t{2 * kInner * kHidden});
  }
}

TEST_F(StoredExpertsTest, ReportsTensorsThatCannotBeRead) {
  StoredExperts far = stored(floats, DType::kF32);
  far.read = [](void*, const void*, size_t) {
    return Status(Error{ErrorKind::kIo, "", "cuda", "calls that succeed", "the GPU is lost"});
  };
  const auto there = described(std::move(far), "f32");
  ASSERT_TRUE(there.ok());
  EXPECT_EQ(there->w2.expert(1).error().to_string(),
            "w2, expert 1: cuda: needs calls that succeed; the GPU is lost");
}

TEST_F(StoredExpertsTest, CanonicalCodesAreUsedInPlace) {
  const auto weights = described(stored(floats, DType::kF32), "f32");
  ASSERT_TRUE(weights.ok());
  const auto expert = weights->w2.expert(2);
  ASSERT_TRUE(expert.ok());
  const auto* data = reinterpret_cast<const std::byte*>(floats.data() + 2 * kHidden * kInner);
  EXPECT_EQ(expert->codes.data(), data);
  EXPECT_EQ(row(*expert, 1)[3], floats[2 * kHidden * kInner + kInner + 3]);
}

TEST_F(StoredExpertsTest, UnsignedCodesAndZeroPointsBecomeSigned) {
  StoredExperts experts = stored(bytes, DType::kU8, 2);
  add_scales(experts, {kExperts, 64, 2}, {kExperts, 64, 1});
  experts.w13.zero_points = view(bytes, DType::kU8, {kExperts, 32, 2});
  experts.w2.zero_points = view(bytes, DType::kU8, {kExperts, 32, 1});
  const auto weights = described(experts, "int4-w4a16-g32-asym");
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  const auto expert = weights->w13.expert(1);
  ASSERT_TRUE(expert.ok());
  for (const int64_t r : {0, 5}) {
    const std::vector<double> values = row(*expert, r);
    for (const int64_t c : {0, 33, 63}) {
      const int code = bytes[(64 + r) * 32 + c / 2] >> (c % 2 * 4) & 15;
      const int zero = bytes[(32 + r / 2) * 2 + c / 32] >> (r % 2 * 4) & 15;
      EXPECT_EQ(values[c], code - zero) << "row " << r << ", column " << c;
    }
  }
}

TEST_F(StoredExpertsTest, SignedBytesKeepTheirValues) {
  StoredExperts experts = stored(bytes, DType::kI8);
  add_scales(experts, {kExperts, 64, 1}, {kExperts, 64});
  const auto weights = described(experts, "int8-w8a8");
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  const auto expert = weights->w2.expert(0);
  ASSERT_TRUE(expert.ok());
  EXPECT_EQ(row(*expert, 3)[2], bytes[3 * kInner + 2]);
}

TEST_F(StoredExpertsTest, OneScalePerTensorServesEveryRow) {
  std::vector<float> scales = {2, 3, 5};
  StoredExperts experts = stored(bytes, DType::kU8);
  experts.w13.scales = experts.w2.scales = view(scales, DType::kF32, {3});
  const auto weights = described(experts, "fp8-w8a16-tensor");
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  const auto expert = weights->w2.expert(1);
  ASSERT_TRUE(expert.ok());
  EXPECT_EQ(expert->scales, std::vector<float>(kHidden, 3));
}

TEST_F(StoredExpertsTest, ExponentsBecomePowersOfTwo) {
  std::vector<uint8_t> exponents(kExperts * 64 * 2, 127);
  exponents[0] = 130;
  StoredExperts experts = stored(bytes, DType::kU8, 2);
  experts.w13.scales = view(exponents, DType::kU8, {kExperts, 64, 2});
  experts.w2.scales = view(exponents, DType::kU8, {kExperts, 64, 1});
  const auto weights = described(experts, "mxfp4-w4a16");
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  const auto expert = weights->w13.expert(0);
  ASSERT_TRUE(expert.ok());
  EXPECT_EQ(expert->scales[0], 8);
  EXPECT_EQ(expert->scales[1], 1);
}

TEST_F(StoredExpertsTest, InterleavedRowsBecomeGateThenUp) {
  StoredExperts experts = stored(floats, DType::kF32);
  experts.interleaved = true;
  const auto weights = described(experts, "f32");
  ASSERT_TRUE(weights.ok());
  const auto expert = weights->w13.expert(0);
  ASSERT_TRUE(expert.ok());
  EXPECT_EQ(row(*expert, 1)[0], floats[2 * kHidden]);           // gate row 1
  EXPECT_EQ(row(*expert, kInner + 1)[0], floats[3 * kHidden]);  // up row 1
}

TEST_F(StoredExpertsTest, ExpertMapSelectsTensorsOfEachExpert) {
  StoredExperts experts = stored(floats, DType::kF32);
  experts.expert_map = {-1, 2, -1, 0, 1};
  const auto weights = described(experts, "f32");
  ASSERT_TRUE(weights.ok());
  EXPECT_EQ(weights->spec.num_experts, 5);
  EXPECT_EQ(row(*weights->w2.expert(1), 0)[0], floats[2 * kHidden * kInner]);
  EXPECT_FALSE(weights->w2.expert(0).ok());
  experts.expert_map = {0, 3};
  expect_refusal(experts, "f32", "expert_map: needs -1 to 2; expert 1 has 3");
}

TEST_F(StoredExpertsTest, StaticSchemeNeedsScalesAboveZero) {
  StoredExperts experts = stored(bytes, DType::kU8);
  add_scales(experts, {kExperts}, {kExperts});
  expect_refusal(experts, "fp8-w8a8-tensor-static", "a1_scale: needs one scale per expert");
  std::vector<float> scales = {0.5f, 1, 2}, zeros = {0};
  experts.w13.input_scales = view(scales, DType::kF32, {3});
  experts.w2.input_scales = view(zeros, DType::kF32, {1});
  expect_refusal(experts, "fp8-w8a8-tensor-static", "a2_scale: needs scales above 0");
  experts.w2.input_scales = view(ones, DType::kF32, {1});
  const auto weights = described(experts, "fp8-w8a8-tensor-static");
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  EXPECT_THAT(weights->w13.input_scales(), ElementsAre(0.5f, 1, 2));
  EXPECT_THAT(weights->w2.input_scales(), ElementsAre(1, 1, 1));
}

TEST_F(StoredExpertsTest, RejectsTensorsThatDoNotFitByName) {
  StoredExperts experts = stored(floats, DType::kF32);
  expect_refusal(experts, "bf16", "w1: needs bf16 [3, 64, 64]; it is f32 [3, 64, 64]");
  experts.w2.weight.shape = {2, kHidden, kInner};
  expect_refusal(experts, "f32", "w2: needs 3 experts, as w1");
  experts = stored(floats, DType::kF32);
  experts.w2.bias = view(ones, DType::kF32, {kExperts, kInner});
  expect_refusal(experts, "f32", "w2_bias: needs f32, f16 or bf16 [3, 64]");
  experts = stored(bytes, DType::kU8);
  expect_refusal(experts, "fp8-w8a16-channel",
                 "w1_scale: needs f32, f16 or bf16 [3, 64, 1]; it is missing");
  add_scales(experts, {kExperts, 64}, {kExperts, 64});
  experts.w13.zero_points = view(bytes, DType::kU8, {kExperts, 64, 1});
  expect_refusal(experts, "int8-w8a16-channel", "w1_zp: needs no tensor");
  expect_refusal(experts, "int8-w8a16-g32-min",
                 "w1: needs codes without minimums; the scheme is int8-w8a16-g32-min");
  experts.packing = Packing::kAwq;
  expect_refusal(experts, "int8-w8a16-channel", "w1: needs int4 codes, which AWQ packs");
  experts.w13.weight = {};
  expect_refusal(experts, "f32", "w1: needs [experts, rows, columns]; it is missing");
}

TEST_F(StoredExpertsTest, ReadRejectsNonFiniteNumbers) {
  floats[kHidden * kInner + 9] = std::numeric_limits<float>::infinity();
  const auto weights = described(stored(floats, DType::kF32), "f32");
  ASSERT_TRUE(weights.ok());
  EXPECT_TRUE(weights->w2.expert(0).ok());
  const auto expert = weights->w2.expert(1);
  ASSERT_FALSE(expert.ok());
  EXPECT_THAT(expert.error().to_string(),
              HasSubstr("w2, expert 1: needs finite numbers; element 9"));
}

TEST(Packing, ParsesNames) {
  EXPECT_EQ(*parse_packing("rows"), Packing::kRows);
  EXPECT_EQ(*parse_packing("gptq"), Packing::kGptq);
  EXPECT_EQ(*parse_packing("gptq_v2"), Packing::kGptqV2);
  EXPECT_EQ(*parse_packing("awq"), Packing::kAwq);
  EXPECT_THAT(parse_packing("marlin").error().to_string(), HasSubstr("it is 'marlin'"));
}

}  // namespace
}  // namespace moracle::stored_experts_test
