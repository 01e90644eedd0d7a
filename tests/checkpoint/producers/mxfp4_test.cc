// Compares GPT-OSS files with the formula, element by element: all experts in one tensor, as MXFP4
// and as bf16.
#include "checkpoint/read_stored.h"
#include "checkpoint/reader_fixture.h"
#include "mxfp4_synthetic.h"

namespace moracle::testing::mxfp4_test {
namespace {

constexpr int64_t kExperts = kFusedSize.experts, kHidden = kFusedSize.hidden,
                  kIntermediate = kFusedSize.intermediate;
const std::string kGateUp = kFusedExperts + ".gate_up_proj";
const std::string kFusedDown = kFusedExperts + ".down_proj";

// The definition: one sign bit, two exponent bits, one mantissa bit.
double e2m1(int code) {
  constexpr double kSizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kSizes[code & 7] : kSizes[code & 7];
}

double published_value(const SyntheticCheckpoint& checkpoint, const std::string& module, int64_t e,
                       int64_t row, int64_t k) {
  const auto& shape = checkpoint.tensors.at(module + "_blocks").shape;
  const int64_t block = (e * shape[1] + row) * shape[2] + k / 32;
  const int byte = checkpoint.get<uint8_t>(module + "_blocks", block * 16 + k % 32 / 2);
  const int exponent = checkpoint.get<uint8_t>(module + "_scales", block);
  return std::ldexp(e2m1(k % 2 == 0 ? byte & 15 : byte >> 4), exponent - 127);
}

// The row of [gate; up] row r in a tensor with alternating gate and up rows.
int64_t file_row(int64_t r) {
  return r < kIntermediate ? 2 * r : 2 * (r - kIntermediate) + 1;
}

using ExpertValue =
    std::function<double(const std::string& module, int64_t e, int64_t row, int64_t k)>;

// Compares both matrices and the biases of every expert.
void expect_all(const SyntheticCheckpoint& checkpoint, const DescribedWeights& weights,
                bool interleaved, const ExpertValue& value) {
  for (int64_t e = 0; e < kExperts; ++e) {
    for (const DescribedMatrix* described : {&weights.w13, &weights.w2}) {
      const bool is_down = described == &weights.w2;
      const std::string& module = is_down ? kFusedDown : kGateUp;
      const auto from = [&](int64_t r) { return interleaved && !is_down ? file_row(r) : r; };
      expect_values(*described, e, {module}, [&](const std::string& of, int64_t r, int64_t k) {
        return value(of, e, from(r), k);
      });
      const CanonicalMatrix matrix = must(described->expert(e));
      for (int64_t r = 0; r < matrix.n; ++r) {
        const auto bias = checkpoint.get<uint16_t>(module + "_bias", e * matrix.n + from(r));
        ASSERT_EQ(matrix.bias[r], bf16_to_float(bias));
      }
    }
  }
}

TEST(Mxfp4, DequantizesToPublishedValues) {
  for (const bool gpt_oss : {true, false}) {
    const auto checkpoint = mxfp4(gpt_oss);
    const Checkpoint opened = must(checkpoint.open());
    EXPECT_EQ(opened.producer(), "mxfp4");
    const DescribedWeights weights = must(opened.moe_layer(0));
    EXPECT_EQ(weights.spec.scheme, (Scheme{kMxfp4Static, {}}));
    EXPECT_TRUE(weights.spec.bias);
    EXPECT_EQ(weights.w2.tensors().size(), 3u * kExperts);
    EXPECT_EQ(weights.w2.source_bytes(), kExperts * (kHidden * kIntermediate / 2 + kHidden));
    expect_all(checkpoint, weights, gpt_oss, [&](auto& module, int64_t e, int64_t r, int64_t k) {
      return published_value(checkpoint, module, e, r, k);
    });
  }
}

TEST(Mxfp4, DecodesEveryCodeAndExponent) {
  auto checkpoint = mxfp4();
  // Expert 1, row 0 of down: low nibbles ascend through all codes and high nibbles descend.
  const size_t first = kHidden * kIntermediate / 2;
  for (uint8_t i = 0; i < 16; ++i) {
    checkpoint.set<uint8_t>(kFusedDown + "_blocks", first + i,
                            static_cast<uint8_t>(i | (15 - i) << 4));
  }
  for (const int exponent : {0, 127, 254}) {
    checkpoint.set<uint8_t>(kFusedDown + "_scales", kHidden, static_cast<uint8_t>(exponent));
    const DescribedWeights weights = must(checkpoint.experts());
    std::vector<double> row(kIntermediate);
    dequantize_row(must(weights.w2.expert(1)), 0, row.data());
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(row[2 * i], std::ldexp(e2m1(i), exponent - 127));
      EXPECT_EQ(row[2 * i + 1], std::ldexp(e2m1(15 - i), exponent - 127));
    }
  }
  checkpoint.set<uint8_t>(kFusedDown + "_scales", kHidden, 255);
  const DescribedWeights weights = must(checkpoint.experts());
  EXPECT_TRUE(weights.w2.expert(0).ok());
  EXPECT_TRUE(weights.w2.expert(2).ok());
  expect_bad(weights.w2.expert(1), {"tensor '" + kFusedDown + "_scales', expert 1",
                                    "needs exponents from 0 to 254; element [1, 0, 0] is 255"});
}

TEST(Mxfp4, ReadsTransposedInterleavedGptOssExperts) {
  for (const bool gpt_oss : {true, false}) {
    auto checkpoint = without_experts(gpt_oss);
    const int64_t rows = 2 * kIntermediate;
    const auto shape = [&](int64_t n, int64_t k) {
      return std::vector<int64_t>{kExperts, gpt_oss ? k : n, gpt_oss ? n : k};
    };
    checkpoint.add_floats(kGateUp, shape(rows, kHidden));
    checkpoint.add_floats(kFusedDown, shape(kHidden, kIntermediate));
    checkpoint.add_floats(kGateUp + "_bias", {kExperts, rows});
    checkpoint.add_floats(kFusedDown + "_bias", {kExperts, kHidden});
    const DescribedWeights weights = must(checkpoint.experts());
    EXPECT_EQ(name(weights.spec.scheme), "bf16");
    expect_all(checkpoint, weights, gpt_oss, [&](auto& module, int64_t e, int64_t r, int64_t k) {
      const auto& s = checkpoint.tensors.at(module).shape;
      const int64_t at = gpt_oss ? (e * s[1] + k) * s[2] + r : (e * s[1] + r) * s[2] + k;
      return bf16_to_float(checkpoint.get<uint16_t>(module, at));
    });
  }
}

TEST(Mxfp4, NamesTensorsOfWrongShapeOrType) {
  const WrongTensor tensors[] = {
      {"_blocks", DType::kU8, {3, 64, 2, 8}, "needs u8 [3, N, K/32, 16]; it is u8 [3, 64, 2, 8]"},
      {"_blocks", DType::kU8, {2, 64, 1, 16}, "needs u8 [3, N, K/32, 16]; it is u8 [2, 64, 1, 16]"},
      {"_blocks", DType::kI8, {3, 64, 1, 16}, "needs u8 [3, N, K/32, 16]; it is i8 [3, 64, 1, 16]"},
      {"_scales", DType::kU8, {3, 64, 2}, "needs u8 [3, 64, 1]; it is u8 [3, 64, 2]"},
      {"_scales", DType::kF32, {3, 64, 1}, "needs u8 [3, 64, 1]; it is f32 [3, 64, 1]"},
      {"_bias", DType::kBF16, {3, 32}, "needs shape [3, 64]; it is bf16 [3, 32]"},
  };
  for (const WrongTensor& tensor : tensors) expect_named(mxfp4(), kFusedDown, tensor);
  for (const char* part : {"_scales", "_blocks"}) expect_missing(mxfp4(), kFusedDown + part);
  auto checkpoint = mxfp4();
  add_mxfp4(checkpoint, kFusedDown, kHidden, 2 * kIntermediate);
  expect_bad(checkpoint.experts(), {"model.safetensors", "tensor '" + kFusedDown + "_blocks'",
                                    "needs [64, 32] (from config.json)", "[64, 64]"});
}

TEST(Mxfp4, RejectsModulesOtherThanExperts) {
  auto checkpoint = mxfp4();
  checkpoint.quantization()["modules_to_not_convert"] = {"mlp.experts"};
  EXPECT_TRUE(checkpoint.experts().ok());
  checkpoint.quantization()["modules_to_not_convert"] = nullptr;
  EXPECT_TRUE(checkpoint.experts().ok());
  const Checkpoint opened = must(checkpoint.open());
  expect_unsupported(opened.linear({kFusedDown}),
                     {"module '" + kFusedDown + "'", "stored in one tensor"});
  EXPECT_TRUE(opened.linear({kAttention + "q_proj"}).ok());
}

TEST(Mxfp4, ReadsRealFiles) {
  for (const char* folder : {"gptoss-mxfp4", "gptoss-bf16"}) {
    const auto opened = open_stored(folder);
    if (!opened) continue;
    const DescribedWeights weights = must(opened->moe_layer(1));
    EXPECT_TRUE(weights.spec.bias);
    EXPECT_EQ(weights.spec.activation.function, Activation::kSwigluOai);
    std::vector<double> row(256);
    for (int64_t e = 0; e < weights.w13.num_experts(); ++e) {
      for (const DescribedMatrix* matrices : {&weights.w13, &weights.w2}) {
        const CanonicalMatrix matrix = must(matrices->expert(e));
        for (int64_t r = 0; r < matrix.n; ++r) {
          dequantize_row(matrix, r, row.data());
          for (const double value : row) ASSERT_TRUE(std::abs(value) < 16);
        }
      }
    }
  }
}

}  // namespace
}  // namespace moracle::testing::mxfp4_test
