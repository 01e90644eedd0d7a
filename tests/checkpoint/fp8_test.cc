// quant_method "fp8": blocks, channels and tensors of e4m3, against the formula applied element by
// element.
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "base/text.h"
#include "expect_error.h"
#include "quant/codec.h"
#include "synthetic_checkpoint.h"

namespace moracle {
namespace {

using nlohmann::json;
using testing::expect_bad;
using testing::expect_unsupported;
using testing::SyntheticCheckpoint;

const std::string kGate = SyntheticCheckpoint::expert(0, 1, "gate_proj");
const std::string kUp = SyntheticCheckpoint::expert(0, 1, "up_proj");
const std::string kDown = SyntheticCheckpoint::expert(0, 1, "down_proj");
const std::string kAttention = "model.layers.0.self_attn.";

// From the definition: four exponent bits with bias 7, three of mantissa, no infinities.
double e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return std::numeric_limits<double>::quiet_NaN();
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 128) != 0 ? -size : size;
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// How many scales a matrix has: GroupShape{} one, kPerRow one a row, else blocks.
std::vector<int64_t> grid(GroupShape group, int64_t n, int64_t k) {
  if (group == GroupShape{}) return {1};
  if (group == kPerRow) return {n, 1};
  return {ceil_div(n, group.rows), ceil_div(k, group.cols)};
}

// Every linear layer of a plain checkpoint as e4m3, all 256 codes in turn, with scales of `group`.
SyntheticCheckpoint fp8(GroupShape group) {
  auto checkpoint = SyntheticCheckpoint::plain({.layers = 1});
  const bool blocks = group != GroupShape{} && group != kPerRow;
  checkpoint.quantization() = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  if (blocks) checkpoint.quantization()["weight_block_size"] = {group.rows, group.cols};
  size_t seed = 0;
  for (const auto& [name, tensor] : std::map(checkpoint.tensors)) {
    if (!name.ends_with("_proj.weight")) continue;
    const std::vector<int64_t> shape = tensor.shape, scale_shape = grid(group, shape[0], shape[1]);
    std::vector<uint8_t> codes(shape[0] * shape[1]);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(seed++);
    std::vector<float> scales(TensorView{nullptr, DType::kF32, scale_shape}.num_elements());
    for (float& scale : scales) scale = 0.001f * static_cast<float>(1 + seed++ % 97);
    checkpoint.add(name, DType::kF8E4M3, shape, codes);
    checkpoint.add(name + (blocks ? "_scale_inv" : "_scale"), DType::kF32, scale_shape, scales);
  }
  return checkpoint;
}

double published_value(const SyntheticCheckpoint& checkpoint, const std::string& module,
                       GroupShape group, int64_t n, int64_t k) {
  const int64_t cols = checkpoint.tensors.at(module + ".weight").shape[1];
  int64_t at = group == GroupShape{} ? 0 : n;
  std::string scale = module + ".weight_scale";
  if (group != GroupShape{} && group != kPerRow) {
    at = n / group.rows * ceil_div(cols, group.cols) + k / group.cols;
    scale += "_inv";
  }
  return e4m3(checkpoint.get<uint8_t>(module + ".weight", n * cols + k)) *
         static_cast<double>(checkpoint.get<float>(scale, at));
}

void expect_published_values(const SyntheticCheckpoint& checkpoint, GroupShape group,
                             const Result<CanonicalMatrix>& matrix,
                             const std::vector<std::string>& modules) {
  ASSERT_TRUE(matrix.ok()) << matrix.error().to_string();
  std::vector<double> row(matrix->k);
  int64_t first = 0;
  for (const std::string& module : modules) {
    const int64_t rows = checkpoint.tensors.at(module + ".weight").shape[0];
    for (int64_t n = 0; n < rows; ++n) {
      dequantize_row(*matrix, first + n, row.data());
      for (int64_t k = 0; k < matrix->k; ++k) {
        const double expected = published_value(checkpoint, module, group, n, k);
        if (std::isnan(expected) && std::isnan(row[k])) continue;
        ASSERT_EQ(row[k], expected) << module << " row " << n << " column " << k;
      }
    }
    first += rows;
  }
  EXPECT_EQ(first, matrix->n);
}

class Fp8Groups : public ::testing::TestWithParam<GroupShape> {};

TEST_P(Fp8Groups, GiveThePublishedValues) {
  const GroupShape group = GetParam();
  const auto checkpoint = fp8(group);
  const auto opened = checkpoint.open();
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  EXPECT_EQ(opened->producer(), "fp8");
  const auto weights = opened->moe_layer(0);
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  EXPECT_EQ(weights->spec.scheme.weight.group, group);
  EXPECT_EQ(weights->spec.scheme.activation,
            group.cols == GroupShape::kAll ? kFp8DynamicTokenSym : fp8_dynamic_group(group.cols));
  for (int64_t e = 0; e < 4; ++e) {
    const auto module = [&](const char* part) { return SyntheticCheckpoint::expert(0, e, part); };
    expect_published_values(checkpoint, group, weights->w13.expert(e),
                            {module("gate_proj"), module("up_proj")});
    expect_published_values(checkpoint, group, weights->w2.expert(e), {module("down_proj")});
  }
  const std::vector<std::string> qkv = {kAttention + "q_proj", kAttention + "k_proj",
                                        kAttention + "v_proj"};
  const auto stacked = opened->linear(qkv);
  ASSERT_TRUE(stacked.ok()) << stacked.error().to_string();
  expect_published_values(checkpoint, group, stacked->expert(0), qkv);
}

TEST_P(Fp8Groups, StayBlocksWhereRowsEndWithABlock) {
  const GroupShape group = GetParam();
  const auto weights = fp8(group).experts();
  ASSERT_TRUE(weights.ok());
  const bool whole = group.rows > 0 && 16 % group.rows == 0;  // gate and up have 16 rows each
  EXPECT_EQ(weights->w13.shape().key.group.rows, whole ? group.rows : 1);
  EXPECT_EQ(weights->w2.shape().key.group.rows, group == GroupShape{} ? 1 : group.rows);
  EXPECT_EQ(weights->w13.expert(0)->key, weights->w13.shape().key);
  EXPECT_EQ(weights->w2.expert(0)->key, weights->w2.shape().key);
}

// gate and up are [16, 32], down [32, 16]: blocks that fit, that leave an edge, that are larger.
INSTANTIATE_TEST_SUITE_P(All, Fp8Groups,
                         ::testing::Values(GroupShape{}, kPerRow, GroupShape{8, 16},
                                           GroupShape{16, 16}, GroupShape{12, 20}, GroupShape{5, 7},
                                           GroupShape{1, 8}, GroupShape{128, 128}),
                         [](const auto& instance) {
                           const GroupShape group = instance.param;
                           if (group == GroupShape{}) return std::string("tensor");
                           if (group == kPerRow) return std::string("channel");
                           return str("block", group.rows, "x", group.cols);
                         });

TEST(Fp8, GateAndUpKeepTheirOwnTensorScales) {
  auto checkpoint = fp8(GroupShape{});
  checkpoint.set(kGate + ".weight_scale", 0, 0.1f);
  checkpoint.set(kUp + ".weight_scale", 0, 0.3f);
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok());
  std::vector<float> expected(16, 0.1f);
  expected.resize(32, 0.3f);
  EXPECT_EQ(weights->w13.expert(1)->scales, expected);
  EXPECT_EQ(name(weights->spec.scheme), "fp8-w8a8-tensor");
}

TEST(Fp8, ScalesMayHaveAnyOfTheirUsualShapes) {
  auto tensor = fp8(GroupShape{});
  tensor.reshape(kDown + ".weight_scale", {});
  expect_published_values(tensor, GroupShape{}, tensor.experts()->w2.expert(1), {kDown});
  auto channel = fp8(kPerRow);
  channel.reshape(kDown + ".weight_scale", {32});
  expect_published_values(channel, kPerRow, channel.experts()->w2.expert(1), {kDown});
  // One row or one column of blocks, flat.
  const GroupShape block{8, 16};
  auto flat = fp8(block);
  flat.reshape(kDown + ".weight_scale_inv", {4});
  expect_published_values(flat, block, flat.experts()->w2.expert(1), {kDown});
  flat.reshape(kGate + ".weight_scale_inv", {4});  // two by two: nobody knows which
  expect_bad(flat.experts(),
             {"tensor '" + kGate + ".weight_scale_inv'",
              "needs shape [2, 2] (blocks of 8 x 16 of [16, 32])", "it is f32 [4]"});
}

TEST(Fp8, ATensorOfOtherBlocksIsNamed) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 1}, {1, 4}, {4, 2}, {1}, {}}) {
    auto checkpoint = fp8({12, 20});
    checkpoint.reshape(kDown + ".weight_scale_inv", shape);
    expect_bad(checkpoint.experts(),
               {"model.safetensors", "tensor '" + kDown + ".weight_scale_inv'",
                "needs shape [3, 1] (blocks of 12 x 20 of [32, 16])", "it is f32 ["});
  }
  auto checkpoint = fp8(kPerRow);
  checkpoint.reshape(kDown + ".weight_scale", {16});
  expect_bad(checkpoint.experts(), {"needs shape [] (one scale for the tensor), or shape [32, 1] "
                                    "(one scale for each of 32 rows); it is f32 [16]"});
}

TEST(Fp8, TensorsOfAnotherTypeAreNamed) {
  for (const DType dtype : {DType::kI8, DType::kU8, DType::kF8E5M2, DType::kBF16}) {
    auto checkpoint = fp8(kPerRow);
    checkpoint.retype(kUp + ".weight", dtype);
    expect_bad(checkpoint.experts(), {"tensor '" + kUp + ".weight'", "needs f8_e4m3 [N, K]",
                                      str("it is ", name(dtype), " [16, 32]")});
  }
  auto checkpoint = fp8(kPerRow);
  checkpoint.retype(kUp + ".weight_scale", DType::kU8);
  expect_bad(checkpoint.experts(),
             {"tensor '" + kUp + ".weight_scale'", "needs f32, f16 or bf16", "it is u8 [16, 1]"});
  checkpoint.remove(kUp + ".weight_scale");
  expect_bad(checkpoint.experts(), {"tensor '" + kUp + ".weight_scale'", "it is missing"});
  checkpoint = fp8(kPerRow);
  checkpoint.remove(kUp + ".weight");
  expect_bad(checkpoint.experts(), {"tensor '" + kUp + ".weight'", "it is missing"});
  checkpoint = fp8(kPerRow);
  checkpoint.set(kDown + ".weight_scale", 7, std::numeric_limits<float>::quiet_NaN());
  expect_bad(checkpoint.experts()->w2.expert(1),
             {"tensor '" + kDown + ".weight_scale'", "element 7 is nan"});
}

TEST(Fp8, StoredInputScalesAreTheLargestOfWhatIsStacked) {
  auto checkpoint = fp8(GroupShape{});
  checkpoint.quantization()["activation_scheme"] = "static";
  float scale = 0.25f;
  for (const auto& [tensor, value] : std::map(checkpoint.tensors)) {
    if (!tensor.ends_with("_proj.weight")) continue;
    const std::string module = tensor.substr(0, tensor.size() - 7);
    checkpoint.add(module + ".input_scale", DType::kF32, {}, std::vector<float>{scale += 0.25f});
  }
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  EXPECT_EQ(name(weights->spec.scheme), "fp8-w8a8-tensor-static");
  // In the order of the names: down, gate, up of one expert after another.
  EXPECT_EQ(weights->w2.input_scales(), (std::vector<float>{0.5f, 1.25f, 2.0f, 2.75f}));
  EXPECT_EQ(weights->w13.input_scales(), (std::vector<float>{1.0f, 1.75f, 2.5f, 3.25f}));
  expect_published_values(checkpoint, GroupShape{}, weights->w13.expert(1), {kGate, kUp});

  checkpoint.quantization()["activation_scheme"] = "dynamic";
  expect_bad(checkpoint.experts(), {".input_scale'", "nothing reads it"});
  checkpoint.quantization()["activation_scheme"] = "static";
  checkpoint.set(kUp + ".input_scale", 0, 0.0f);
  expect_bad(checkpoint.experts(), {"tensor '" + kUp + ".input_scale'", "needs one scale above 0"});
  checkpoint.remove(kUp + ".input_scale");
  expect_bad(checkpoint.experts(), {"tensor '" + kUp + ".input_scale'", "it is missing"});
}

TEST(Fp8, ScalesOfUe8m0ArePowersOfTwo) {
  auto checkpoint = fp8({8, 16});
  checkpoint.quantization()["scale_fmt"] = "ue8m0";
  expect_bad(checkpoint.experts()->w2.expert(1),
             {"tensor '" + kDown + ".weight_scale_inv'", "needs powers of two", "element 0 is "});
  for (size_t i = 0; i < 4; ++i) {
    checkpoint.set(kDown + ".weight_scale_inv", i, std::ldexp(1.0f, static_cast<int>(i) - 127));
  }
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok());
  const auto as_floats = weights->w2.expert(1);
  expect_published_values(checkpoint, {8, 16}, as_floats, {kDown});
  checkpoint.add(kDown + ".weight_scale_inv", DType::kF8E8M0, {4, 1},
                 std::vector<uint8_t>{0, 1, 2, 3});
  EXPECT_EQ(checkpoint.experts()->w2.expert(1)->scales, as_floats->scales);
  checkpoint.set<uint8_t>(kDown + ".weight_scale_inv", 2, 255);
  expect_bad(checkpoint.experts()->w2.expert(1), {"needs exponents from 0 to 254", "element 2 is"});
  checkpoint.quantization().erase("scale_fmt");
  expect_bad(checkpoint.experts(), {"needs f32, f16 or bf16", "it is f8_e8m0 [4, 1]"});
}

TEST(Fp8, WhatTheConfigLeavesOutMayNotBeQuantized) {
  const std::string query = kAttention + "q_proj";
  for (const char* key : {"ignored_layers", "modules_to_not_convert"}) {
    auto checkpoint = fp8({8, 16});
    checkpoint.quantization()[key] = json::array({"lm_head", query});
    EXPECT_TRUE(checkpoint.experts().ok());
    expect_bad(checkpoint.open()->linear({query}), {"module '" + query + "'", "leaves it out"});
    // One name below a layer's experts speaks for all of them; another layer's does not.
    checkpoint.quantization()[key] = {"model.layers.10.mlp.experts.3.up_proj"};
    EXPECT_TRUE(checkpoint.experts().ok());
    checkpoint.quantization()[key] = {"model.layers.0.mlp.experts.3.up_proj"};
    expect_bad(checkpoint.experts(), {"leaves it out", "the file holds it quantized"});
    checkpoint.quantization()[key] = nullptr;
    EXPECT_TRUE(checkpoint.experts().ok());
  }
}

TEST(Fp8, ABiasIsRead) {
  auto checkpoint = fp8({8, 16});
  checkpoint.add_floats(kAttention + "q_proj.bias", {32});
  const auto linear = checkpoint.open()->linear({kAttention + "q_proj"});
  ASSERT_TRUE(linear.ok()) << linear.error().to_string();
  EXPECT_TRUE(linear->shape().bias);
  EXPECT_EQ(linear->expert(0)->bias.size(), 32u);
}

TEST(Fp8, AnotherVariantIsRefusedByItsKey) {
  const std::pair<json, const char*> cases[] = {
      {{{"fmt", "e5m2"}}, "fmt: needs e4m3; it is e5m2"},
      {{{"store_dtype", "mxfp4"}}, "store_dtype: needs weights stored as e4m3"},
      {{{"activation_scheme", "none"}}, "activation_scheme: needs dynamic or static; it is none"},
      {{{"activation_scheme", "static"}}, "activation_scheme: needs dynamic, since weights have"},
      {{{"scale_fmt", "ue4m3"}}, "scale_fmt: needs ue8m0, float or nothing; it is ue4m3"}};
  for (const auto& [change, line] : cases) {
    auto checkpoint = fp8({8, 16});
    checkpoint.quantization().update(change);
    expect_unsupported(checkpoint.open(), {"/config.json: quantization_config.", line});
  }
  for (const json& block : {json::array({8}), json::array({0, 16}), json::array({1, 2, 3}),
                            json::array({INT64_MAX, 16})}) {
    auto checkpoint = fp8({8, 16});
    checkpoint.quantization()["weight_block_size"] = block;
    expect_bad(checkpoint.open(), {"weight_block_size: needs two positive sizes"});
  }
}

TEST(Fp8, RealFilesAreRead) {
  for (const char* folder : {"qwen3moe-fp8-block128", "dsv3-fp8-block128"}) {
    const std::string path = str(MORACLE_CHECKPOINTS_DIR, "/", folder);
    if (!std::filesystem::exists(path)) continue;
    const auto opened = Checkpoint::open(path);
    ASSERT_TRUE(opened.ok()) << opened.error().to_string();
    const auto weights = opened->moe_layer(1);
    ASSERT_TRUE(weights.ok()) << weights.error().to_string();
    EXPECT_EQ(name(weights->spec.scheme), "fp8-w8a8-block128x128");
    for (int64_t e = 0; e < weights->w13.num_experts(); ++e) {
      const auto w13 = weights->w13.expert(e), w2 = weights->w2.expert(e);
      ASSERT_TRUE(w13.ok() && w2.ok());
      EXPECT_EQ(w13->scales.size(), 4u);
      EXPECT_EQ(w2->scales.size(), 2u);
    }
    if (std::string_view(folder).starts_with("qwen")) continue;
    // Edges of blocks: 96 rows, 64 columns.
    const std::string attention = "model.layers.1.self_attn.";
    const auto kv_a = opened->linear({attention + "kv_a_proj_with_mqa"});
    const auto kv_b = opened->linear({attention + "kv_b_proj"});
    ASSERT_TRUE(kv_a.ok() && kv_b.ok());
    EXPECT_EQ(kv_a->expert(0)->scales.size(), 2u);
    EXPECT_EQ(kv_b->expert(0)->scales.size(), 4u);
  }
}

}  // namespace
}  // namespace moracle
