// Checkpoints without quantization.
#include <cstring>
#include <string>
#include <vector>

#include "base/scalar.h"
#include "expect_error.h"
#include "quant/codec.h"
#include "synthetic_checkpoint.h"

namespace moracle {
namespace {

using testing::expect_bad;
using testing::SyntheticCheckpoint;

const std::string kGate = SyntheticCheckpoint::expert(0, 1, "gate_proj.weight");
const std::string kUp = SyntheticCheckpoint::expert(0, 1, "up_proj.weight");
const std::string kDown = SyntheticCheckpoint::expert(0, 1, "down_proj.weight");

void retype_experts(SyntheticCheckpoint& checkpoint, DType dtype) {
  for (auto& [name, tensor] : checkpoint.tensors) {
    if (name.find(".experts.") != name.npos) checkpoint.retype(name, dtype);
  }
}

TEST(Plain, TheExpertsAreTheFilesOwnBytes) {
  const auto checkpoint = SyntheticCheckpoint::plain();
  const auto opened = checkpoint.open();
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  EXPECT_EQ(opened->producer(), "plain");
  const auto weights = opened->moe_layer(0);
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  EXPECT_EQ(name(weights->spec.scheme), "bf16");

  const auto w2 = weights->w2.expert(1);
  ASSERT_TRUE(w2.ok());
  EXPECT_TRUE(w2->storage.empty());
  ASSERT_EQ(w2->codes.size(), checkpoint.tensors.at(kDown).bytes.size());
  EXPECT_EQ(
      std::memcmp(w2->codes.data(), checkpoint.tensors.at(kDown).bytes.data(), w2->codes.size()),
      0);
  EXPECT_TRUE(w2->scales.empty());
}

TEST(Plain, GateLiesAboveUp) {
  const auto checkpoint = SyntheticCheckpoint::plain();
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok());
  const auto w13 = weights->w13.expert(1);
  ASSERT_TRUE(w13.ok());
  std::vector<std::byte> stacked = checkpoint.tensors.at(kGate).bytes;
  const auto& up = checkpoint.tensors.at(kUp).bytes;
  stacked.insert(stacked.end(), up.begin(), up.end());
  ASSERT_EQ(w13->codes.size(), stacked.size());
  EXPECT_EQ(std::memcmp(w13->codes.data(), stacked.data(), stacked.size()), 0);
  EXPECT_EQ(w13->n, 32);
  EXPECT_EQ(w13->k, 32);
}

TEST(Plain, WeightsMayBeAny16Or32BitFloat) {
  for (const auto& [dtype, shown] :
       {std::pair{DType::kF32, "f32"}, {DType::kF16, "f16"}, {DType::kBF16, "bf16"}}) {
    auto checkpoint = SyntheticCheckpoint::plain();
    retype_experts(checkpoint, dtype);
    const auto weights = checkpoint.experts();
    ASSERT_TRUE(weights.ok()) << weights.error().to_string();
    EXPECT_EQ(name(weights->spec.scheme), shown);
  }
}

TEST(Plain, AWeightThatIsNoFloatIsNamed) {
  for (const auto& [dtype, shown] : {std::pair{DType::kI8, "i8"},
                                     {DType::kF64, "f64"},
                                     {DType::kF8E4M3, "f8_e4m3"},
                                     {DType::kBool, "bool"}}) {
    auto checkpoint = SyntheticCheckpoint::plain();
    checkpoint.retype(kUp, dtype);
    expect_bad(checkpoint.experts(), {"model.safetensors", "tensor '" + kUp + "'",
                                      "needs bf16, f16 or f32 of two dimensions",
                                      std::string("it is ") + shown + " [16, 32]"});
  }
}

TEST(Plain, AWeightOfOtherDimensionsIsNamed) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{512}, {16, 32, 1}, {}, {1, 16, 32}}) {
    auto checkpoint = SyntheticCheckpoint::plain();
    checkpoint.reshape(kUp, shape);
    expect_bad(checkpoint.experts(),
               {"tensor '" + kUp + "'", "needs bf16, f16 or f32 of two dimensions"});
  }
}

TEST(Plain, ExpertsOfAnotherFloatThanTheFirstAreRefused) {
  auto checkpoint = SyntheticCheckpoint::plain();
  for (const std::string& name : {kGate, kUp, kDown}) checkpoint.retype(name, DType::kF16);
  expect_bad(checkpoint.experts(),
             {"tensor '" + kGate + "'",
              "needs the scheme of expert 0, bf16 [32, 32]; it is f16 [32, 32]"});
}

TEST(Plain, GateAndUpDoNotMakeUpForEachOthersRows) {
  auto shifted = SyntheticCheckpoint::plain();
  shifted.reshape(kGate, {20, 32});
  shifted.reshape(kUp, {12, 32});
  expect_bad(shifted.experts(),
             {"tensor '" + kGate + "'", "needs [16, 32] (from config.json); it is bf16 [20, 32]"});
}

TEST(Plain, ALinearLayerStacksItsModules) {
  const auto checkpoint = SyntheticCheckpoint::plain();
  const auto opened = checkpoint.open();
  ASSERT_TRUE(opened.ok());
  const std::string attention = "model.layers.0.self_attn.";
  const auto qkv =
      opened->linear({attention + "q_proj", attention + "k_proj", attention + "v_proj"});
  ASSERT_TRUE(qkv.ok()) << qkv.error().to_string();
  EXPECT_EQ(qkv->shape().n, 64);
  EXPECT_EQ(qkv->shape().k, 32);
  EXPECT_EQ(qkv->num_experts(), 1);
  EXPECT_EQ(qkv->tensors(),
            (std::vector<std::string>{attention + "q_proj.weight", attention + "k_proj.weight",
                                      attention + "v_proj.weight"}));
  EXPECT_EQ(qkv->source_bytes(), 64 * 32 * 2);
  const auto matrix = qkv->expert(0);
  ASSERT_TRUE(matrix.ok());
  std::vector<double> row(32);
  decode_row(*matrix, 32 + 5, row.data());
  for (int k = 0; k < 32; ++k) {
    EXPECT_EQ(row[k],
              bf16_to_float(checkpoint.get<uint16_t>(attention + "k_proj.weight", 5 * 32 + k)));
  }
}

TEST(Plain, AReleasedExpertCanBeReadAgain) {
  const auto checkpoint = SyntheticCheckpoint::plain();
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok());
  for (int round = 0; round < 2; ++round) {
    const auto w2 = weights->w2.expert(1);
    ASSERT_TRUE(w2.ok());
    EXPECT_EQ(
        std::memcmp(w2->codes.data(), checkpoint.tensors.at(kDown).bytes.data(), w2->codes.size()),
        0);
    weights->w2.release(1);
  }
}

TEST(Plain, AVectorIsWidenedAndChecked) {
  auto checkpoint = SyntheticCheckpoint::plain();
  const std::string norm = "model.norm.weight";
  const auto values = checkpoint.open()->vector(norm, 32);
  ASSERT_TRUE(values.ok()) << values.error().to_string();
  EXPECT_EQ((*values)[7], bf16_to_float(checkpoint.get<uint16_t>(norm, 7)));
  expect_bad(checkpoint.open()->vector(norm, 31),
             {"model.safetensors", "tensor '" + norm + "'", "needs shape [31]; it is bf16 [32]"});
  expect_bad(checkpoint.open()->vector("absent", 32), {"tensor 'absent'", "it is missing"});
  checkpoint.set<uint16_t>(norm, 7, 0x7fc0);
  expect_bad(checkpoint.open()->vector(norm, 32),
             {"tensor '" + norm + "'", "needs finite numbers; element 7 is nan"});
  checkpoint.retype(norm, DType::kI16);
  expect_bad(checkpoint.open()->vector(norm, 32), {"needs f32, f16 or bf16; it is i16 [32]"});
}

}  // namespace
}  // namespace moracle
