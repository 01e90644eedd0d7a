// Tests checkpoints without quantization.
#include <cstring>

#include "checkpoint/reader_fixture.h"

namespace moracle::testing::plain_test {
namespace {

void retype_experts(SyntheticCheckpoint& checkpoint, DType dtype) {
  for (auto& [name, tensor] : checkpoint.tensors) {
    if (name.find(".experts.") != name.npos) checkpoint.retype(name, dtype);
  }
}

void expect_bytes(const CanonicalMatrix& matrix, const std::vector<std::byte>& bytes) {
  ASSERT_EQ(matrix.codes.size(), bytes.size());
  EXPECT_EQ(std::memcmp(matrix.codes.data(), bytes.data(), bytes.size()), 0);
}

TEST(Plain, ExpertsPointIntoFile) {
  const auto checkpoint = SyntheticCheckpoint::plain();
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_EQ(opened.producer(), "plain");
  const DescribedWeights weights = must(opened.moe_layer(0));
  EXPECT_EQ(name(weights.spec.scheme), "bf16");

  const CanonicalMatrix w2 = must(weights.w2.expert(1));
  EXPECT_TRUE(w2.storage.empty());
  expect_bytes(w2, checkpoint.tensors.at(kDown + ".weight").bytes);
  EXPECT_TRUE(w2.scales.empty());
}

TEST(Plain, StacksGateAboveUp) {
  const auto checkpoint = SyntheticCheckpoint::plain();
  const DescribedWeights weights = must(checkpoint.experts());
  const CanonicalMatrix w13 = must(weights.w13.expert(1));
  std::vector<std::byte> stacked = checkpoint.tensors.at(kGate + ".weight").bytes;
  const auto& up = checkpoint.tensors.at(kUp + ".weight").bytes;
  stacked.insert(stacked.end(), up.begin(), up.end());
  expect_bytes(w13, stacked);
  EXPECT_EQ(w13.n, 32);
  EXPECT_EQ(w13.k, 32);
}

TEST(Plain, AcceptsAny16Or32BitFloat) {
  for (const auto& [dtype, shown] :
       {std::pair{DType::kF32, "f32"}, {DType::kF16, "f16"}, {DType::kBF16, "bf16"}}) {
    auto checkpoint = SyntheticCheckpoint::plain();
    retype_experts(checkpoint, dtype);
    EXPECT_EQ(name(must(checkpoint.experts()).spec.scheme), shown);
  }
}

TEST(Plain, NamesWeightThatIsNotFloat) {
  for (const auto& [dtype, shown] : {std::pair{DType::kI8, "i8"},
                                     {DType::kF64, "f64"},
                                     {DType::kF8E4M3, "f8_e4m3"},
                                     {DType::kBool, "bool"}}) {
    expect_named(SyntheticCheckpoint::plain(), kUp,
                 {".weight",
                  dtype,
                  {16, 32},
                  str("needs bf16, f16 or f32 of two dimensions; it is ", shown, " [16, 32]")});
  }
}

TEST(Plain, NamesWeightOfWrongDimensions) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{512}, {16, 32, 1}, {}, {1, 16, 32}}) {
    expect_named(SyntheticCheckpoint::plain(), kUp,
                 {".weight", DType::kBF16, shape, "needs bf16, f16 or f32 of two dimensions"});
  }
}

TEST(Plain, RejectsExpertsOfDifferentFloatTypes) {
  auto checkpoint = SyntheticCheckpoint::plain();
  for (const std::string& module : {kGate, kUp, kDown}) {
    checkpoint.retype(module + ".weight", DType::kF16);
  }
  expect_bad(
      checkpoint.experts(),
      {"tensor '" + kGate + ".weight'",
       "needs the scheme of expert 0, bf16 [32, 32], because one kernel multiplies all experts; "
       "it is f16 [32, 32]"});
}

TEST(Plain, ChecksRowsOfGateAndUpSeparately) {
  auto shifted = SyntheticCheckpoint::plain();
  shifted.reshape(kGate + ".weight", {20, 32});
  shifted.reshape(kUp + ".weight", {12, 32});
  expect_bad(shifted.experts(), {"tensor '" + kGate + ".weight'",
                                 "needs [16, 32] (from config.json); it is bf16 [20, 32]"});
}

TEST(Plain, LinearLayerStacksItsModules) {
  const auto checkpoint = SyntheticCheckpoint::plain();
  const DescribedMatrix qkv = must(must(checkpoint.open()).linear(kQkv));
  EXPECT_EQ(qkv.shape().n, 64);
  EXPECT_EQ(qkv.shape().k, 32);
  EXPECT_EQ(qkv.num_experts(), 1);
  EXPECT_EQ(qkv.tensors(),
            (std::vector<std::string>{kAttention + "q_proj.weight", kAttention + "k_proj.weight",
                                      kAttention + "v_proj.weight"}));
  EXPECT_EQ(qkv.source_bytes(), 64 * 32 * 2);
  const CanonicalMatrix matrix = must(qkv.expert(0));
  std::vector<double> row(32);
  unpack_row(matrix, 32 + 5, row.data());
  for (int k = 0; k < 32; ++k) {
    EXPECT_EQ(row[k],
              bf16_to_float(checkpoint.get<uint16_t>(kAttention + "k_proj.weight", 5 * 32 + k)));
  }
}

TEST(Plain, ReadsExpertAgain) {
  const auto checkpoint = SyntheticCheckpoint::plain();
  const DescribedWeights weights = must(checkpoint.experts());
  for (int round = 0; round < 2; ++round) {
    expect_bytes(must(weights.w2.expert(1)), checkpoint.tensors.at(kDown + ".weight").bytes);
  }
}

TEST(Plain, WidensAndChecksVector) {
  auto checkpoint = SyntheticCheckpoint::plain();
  const std::string norm = "model.norm.weight";
  EXPECT_EQ(must(must(checkpoint.open()).vector(norm, 32))[7],
            bf16_to_float(checkpoint.get<uint16_t>(norm, 7)));
  expect_bad(must(checkpoint.open()).vector(norm, 31),
             {"model.safetensors", "tensor '" + norm + "'", "needs shape [31]; it is bf16 [32]"});
  expect_bad(must(checkpoint.open()).vector("absent", 32), {"tensor 'absent'", "it is missing"});
  checkpoint.set<uint16_t>(norm, 7, 0x7fc0);
  expect_bad(must(checkpoint.open()).vector(norm, 32),
             {"tensor '" + norm + "'", "needs finite numbers; element 7 is nan"});
  checkpoint.retype(norm, DType::kI16);
  expect_bad(must(checkpoint.open()).vector(norm, 32), {"needs f32, f16 or bf16; it is i16 [32]"});
}

}  // namespace
}  // namespace moracle::testing::plain_test
