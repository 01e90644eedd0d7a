// Compares quant_method "fp8" with the formula, element by element: e4m3 with scales per block,
// channel and tensor.
#include <algorithm>
#include <limits>
#include <numeric>

#include "checkpoint/read_stored.h"
#include "checkpoint/reader_fixture.h"
#include "fp8_synthetic.h"
#include "modelopt_synthetic.h"

namespace moracle::testing::fp8_test {
namespace {

using nlohmann::json;

Value published(const SyntheticCheckpoint& checkpoint, GroupShape group) {
  return [&checkpoint, group](const std::string& module, int64_t n, int64_t k) {
    const int64_t cols = checkpoint.tensors.at(module + ".weight").shape[1];
    int64_t at = group == GroupShape{} ? 0 : n;
    std::string scale = module + ".weight_scale";
    if (group != GroupShape{} && group != kPerRow) {
      at = n / group.rows * ceil_div(cols, group.cols) + k / group.cols;
      scale += "_inv";
    }
    return e4m3(checkpoint.get<uint8_t>(module + ".weight", n * cols + k)) *
           static_cast<double>(checkpoint.get<float>(scale, at));
  };
}

class Fp8Groups : public ::testing::TestWithParam<GroupShape> {};

TEST_P(Fp8Groups, DequantizeToPublishedValues) {
  const GroupShape group = GetParam();
  const auto checkpoint = fp8(group);
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_EQ(opened.producer(), "fp8");
  const DescribedWeights weights = must(opened.moe_layer(0));
  EXPECT_EQ(weights.spec.scheme.weight.group, group);
  EXPECT_EQ(weights.spec.scheme.activation,
            group.cols == GroupShape::kAll ? kFp8DynamicTokenSym : fp8_dynamic_group(group.cols));
  const Value value = published(checkpoint, group);
  for (int64_t e = 0; e < 4; ++e) expect_values(weights, e, value);
  expect_values(must(opened.linear(kQkv)), 0, kQkv, value);
}

TEST_P(Fp8Groups, StayBlocksOfRowsThatDivideGateAndUp) {
  const GroupShape group = GetParam();
  const DescribedWeights weights = must(fp8(group).experts());
  // Gate and up have 16 rows each.
  const int64_t rows = group == GroupShape{} ? 1 : std::gcd(group.rows, int64_t{16});
  EXPECT_EQ(weights.w13.shape().key.group.rows, rows);
  EXPECT_EQ(weights.w2.shape().key.group.rows, group == GroupShape{} ? 1 : group.rows);
  EXPECT_EQ(must(weights.w13.expert(0)).key, weights.w13.shape().key);
  EXPECT_EQ(must(weights.w2.expert(0)).key, weights.w2.shape().key);
}

// gate and up are [16, 32], down is [32, 16]. Blocks divide them, leave an edge, or are larger.
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
  const DescribedWeights weights = must(checkpoint.experts());
  std::vector<float> expected(16, 0.1f);
  expected.resize(32, 0.3f);
  EXPECT_EQ(must(weights.w13.expert(1)).scales, expected);
  EXPECT_EQ(name(weights.spec.scheme), "fp8-w8a8-tensor");
}

TEST(Fp8, AcceptsEveryUsualScaleShape) {
  auto tensor = fp8(GroupShape{});
  tensor.reshape(kDown + ".weight_scale", {});
  expect_values(must(tensor.experts()).w2, 1, {kDown}, published(tensor, GroupShape{}));
  auto channel = fp8(kPerRow);
  channel.reshape(kDown + ".weight_scale", {32});
  expect_values(must(channel.experts()).w2, 1, {kDown}, published(channel, kPerRow));
  // A flat tensor of scales: one row or one column of blocks.
  const GroupShape block{8, 16};
  auto flat = fp8(block);
  flat.reshape(kDown + ".weight_scale_inv", {4});
  expect_values(must(flat.experts()).w2, 1, {kDown}, published(flat, block));
  flat.reshape(kGate + ".weight_scale_inv", {4});  // two by two blocks: ambiguous
  expect_bad(flat.experts(),
             {"tensor '" + kGate + ".weight_scale_inv'",
              "needs shape [2, 2] (blocks of 8 x 16 of [16, 32])", "it is f32 [4]"});
}

TEST(Fp8, NamesTensorOfOtherBlockSize) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 1}, {1, 4}, {4, 2}, {1}, {}}) {
    expect_named(fp8({12, 20}), kDown,
                 {".weight_scale_inv", DType::kF32, shape,
                  "needs shape [3, 1] (blocks of 12 x 20 of [32, 16]); it is f32 ["});
  }
  auto checkpoint = fp8(kPerRow);
  checkpoint.reshape(kDown + ".weight_scale", {16});
  expect_bad(checkpoint.experts(), {"needs shape [] (one scale for the tensor), or shape [32, 1] "
                                    "(one scale for each of 32 rows); it is f32 [16]"});
}

TEST(Fp8, NamesTensorsOfWrongType) {
  for (const DType dtype : {DType::kI8, DType::kU8, DType::kF8E5M2, DType::kBF16}) {
    const std::string line = str("needs f8_e4m3 [N, K]; it is ", name(dtype), " [16, 32]");
    expect_named(fp8(kPerRow), kUp, {".weight", dtype, {16, 32}, line});
  }
  expect_named(fp8(kPerRow), kUp,
               {".weight_scale", DType::kU8, {16, 1}, "needs f32, f16 or bf16; it is u8 [16, 1]"});
  for (const char* part : {".weight_scale", ".weight"}) expect_missing(fp8(kPerRow), kUp + part);
  auto checkpoint = fp8(kPerRow);
  checkpoint.set(kDown + ".weight_scale", 7, std::numeric_limits<float>::quiet_NaN());
  expect_bad(must(checkpoint.experts()).w2.expert(1),
             {"tensor '" + kDown + ".weight_scale'", "element [7, 0] is nan"});
}

TEST(Fp8, UsesLargestInputScaleOfStack) {
  auto checkpoint = fp8(GroupShape{});
  checkpoint.quantization()["activation_scheme"] = "static";
  float scale = 0.25f;
  for (const auto& [tensor, value] : std::map(checkpoint.tensors)) {
    if (!tensor.ends_with("_proj.weight")) continue;
    const std::string module = tensor.substr(0, tensor.size() - 7);
    checkpoint.add(module + ".input_scale", DType::kF32, {}, std::vector<float>{scale += 0.25f});
  }
  const DescribedWeights weights = must(checkpoint.experts());
  EXPECT_EQ(name(weights.spec.scheme), "fp8-w8a8-tensor-static");
  // In name order: down, gate and up of expert 0, then of expert 1, and so on.
  EXPECT_EQ(weights.w2.input_scales(), (std::vector<float>{0.5f, 1.25f, 2.0f, 2.75f}));
  EXPECT_EQ(weights.w13.input_scales(), (std::vector<float>{1.0f, 1.75f, 2.5f, 3.25f}));
  expect_values(weights, 1, published(checkpoint, GroupShape{}));

  checkpoint.quantization()["activation_scheme"] = "dynamic";
  expect_bad(checkpoint.experts(), {".input_scale'", "the model does not use it"});
  checkpoint.quantization()["activation_scheme"] = "static";
  checkpoint.set(kUp + ".input_scale", 0, 0.0f);
  expect_bad(checkpoint.experts(), {"tensor '" + kUp + ".input_scale'", "needs one scale above 0"});
  expect_missing(checkpoint, kUp + ".input_scale");
}

TEST(Fp8, AcceptsEverySpellingOfKeys) {
  for (const json& change :
       {json{{"fmt", "float8_e4m3fn"}}, json{{"fmt", "torch.float8_e4m3fn"}},
        json{{"fmt", "fp8_e4m3"}}, json{{"store_dtype", "float8_e4m3fn"}},
        json{{"activation_scheme", "DYNAMIC"}}, json{{"activation_scheme", nullptr}},
        json{{"quant_method", "FP8"}}, json{{"dequantize", false}}}) {
    auto checkpoint = fp8({8, 16});
    checkpoint.quantization().update(change);
    const DescribedWeights weights = must(checkpoint.experts());
    EXPECT_EQ(name(weights.spec.scheme), "fp8-w8a8-block8x16") << change;
    expect_values(weights, 1, published(checkpoint, {8, 16}));
  }
}

TEST(Fp8, AcceptsEitherNameOfScales) {
  for (const GroupShape group : {GroupShape{}, kPerRow, GroupShape{8, 16}}) {
    const auto checkpoint = fp8(group);
    auto renamed = checkpoint;
    for (const auto& [tensor, value] : checkpoint.tensors) {
      if (tensor.ends_with(".weight_scale"))
        renamed.rename(tensor, tensor + "_inv");
      else if (tensor.ends_with(".weight_scale_inv"))
        renamed.rename(tensor, tensor.substr(0, tensor.size() - 4));
    }
    const DescribedWeights weights = must(renamed.experts());
    EXPECT_EQ(weights.spec.scheme, must(checkpoint.experts()).spec.scheme);
    expect_values(weights, 1, published(checkpoint, group));
  }
}

// transformers writes activation_scale and weight_scale_inv for one static scale.
TEST(Fp8, ReadsActivationScaleAsInputScale) {
  auto checkpoint = fp8(GroupShape{});
  checkpoint.quantization()["activation_scheme"] = "static";
  for (const auto& [tensor, value] : std::map(checkpoint.tensors)) {
    if (!tensor.ends_with("_proj.weight_scale")) continue;
    const std::string module = tensor.substr(0, tensor.rfind('.'));
    checkpoint.rename(tensor, tensor + "_inv");
    checkpoint.add(module + ".activation_scale", DType::kF32, {}, std::vector<float>{0.5f});
  }
  const DescribedWeights weights = must(checkpoint.experts());
  EXPECT_EQ(name(weights.spec.scheme), "fp8-w8a8-tensor-static");
  EXPECT_EQ(weights.w2.input_scales(), std::vector<float>(4, 0.5f));
  checkpoint.quantization()["dequantize"] = true;
  EXPECT_EQ(must(checkpoint.experts()).spec.scheme.activation, std::nullopt);
}

// The exponents identify MXFP8, under either name of the method.
TEST(Fp8, ReadsMxfp8) {
  const DescribedWeights want = must(modelopt("MXFP8").experts());
  for (const json& keys :
       {json{{"quant_method", "mxfp8"}}, json{{"quant_method", "MXFP8"}, {"fmt", "float8_e4m3fn"}},
        json{{"quant_method", "mxfp8"}, {"weight_block_size", {1, 32}}, {"scale_fmt", "ue8m0"}},
        json{{"quant_method", "fp8"}, {"weight_block_size", {1, 32}}}}) {
    for (const char* scale : {".weight_scale_inv", ".weight_scale"}) {
      for (const DType dtype : {DType::kU8, DType::kF8E8M0}) {
        auto checkpoint = modelopt("MXFP8");
        checkpoint.quantization() = keys;
        for (const auto& [tensor, value] : modelopt("MXFP8").tensors) {
          if (!tensor.ends_with(".weight_scale")) continue;
          checkpoint.retype(tensor, dtype);
          checkpoint.rename(tensor, tensor.substr(0, tensor.rfind('.')) + scale);
        }
        const DescribedWeights weights = must(checkpoint.experts());
        EXPECT_EQ(name(weights.spec.scheme), "mxfp8-w8a8") << keys << scale;
        EXPECT_EQ(must(weights.w2.expert(1)).scales, must(want.w2.expert(1)).scales);
      }
    }
  }
}

TEST(Fp8, ReadsUe8m0ScalesAsPowersOfTwo) {
  auto checkpoint = fp8({8, 16});
  checkpoint.quantization()["scale_fmt"] = "ue8m0";
  expect_bad(must(checkpoint.experts()).w2.expert(1),
             {"tensor '" + kDown + ".weight_scale_inv'", "needs powers of two", "element 0 is "});
  for (size_t i = 0; i < 4; ++i) {
    checkpoint.set(kDown + ".weight_scale_inv", i, std::ldexp(1.0f, static_cast<int>(i) - 127));
  }
  const DescribedWeights weights = must(checkpoint.experts());
  expect_values(weights.w2, 1, {kDown}, published(checkpoint, {8, 16}));
  const std::vector<float> scales = must(weights.w2.expert(1)).scales;
  checkpoint.add(kDown + ".weight_scale_inv", DType::kF8E8M0, {4, 1},
                 std::vector<uint8_t>{0, 1, 2, 3});
  EXPECT_EQ(must(must(checkpoint.experts()).w2.expert(1)).scales, scales);
  checkpoint.set<uint8_t>(kDown + ".weight_scale_inv", 2, 255);
  expect_bad(must(checkpoint.experts()).w2.expert(1),
             {"needs exponents from 0 to 254", "element [2, 0] is 255"});
  // e8m0 identifies exponents; u8 does not.
  checkpoint.set<uint8_t>(kDown + ".weight_scale_inv", 2, 2);
  checkpoint.quantization().erase("scale_fmt");
  EXPECT_EQ(must(must(checkpoint.experts()).w2.expert(1)).scales, scales);
  checkpoint.retype(kDown + ".weight_scale_inv", DType::kU8);
  expect_bad(checkpoint.experts(), {"needs f32, f16 or bf16", "it is u8 [4, 1]"});
}

TEST(Fp8, ExclusionDecidesOnlyBesideFloats) {
  const std::string query = kAttention + "q_proj";
  for (const char* key : {"ignored_layers", "modules_to_not_convert"}) {
    auto checkpoint = fp8({8, 16});
    checkpoint.quantization()[key] = json::array({"lm_head", query});
    EXPECT_TRUE(checkpoint.experts().ok());
    EXPECT_NE(scheme_of(checkpoint, query), "bf16");
    EXPECT_EQ(scheme_of(with_floats(checkpoint, query), query), "bf16");
    // A name below the experts of a layer counts for all experts of that layer only.
    checkpoint.quantization()[key] = {"model.layers.10.mlp.experts.3.up_proj"};
    EXPECT_TRUE(checkpoint.experts().ok());
    checkpoint.quantization()[key] = {"model.layers.0.mlp.experts.3.up_proj"};
    EXPECT_EQ(scheme_of(with_floats(checkpoint, kUp, {16, 32}), kUp), "bf16");
  }
}

TEST(Fp8, ReadsBias) {
  auto checkpoint = fp8({8, 16});
  checkpoint.add_floats(kAttention + "q_proj.bias", {32});
  const DescribedMatrix linear = must(must(checkpoint.open()).linear({kAttention + "q_proj"}));
  EXPECT_TRUE(linear.shape().bias);
  EXPECT_EQ(must(linear.expert(0)).bias.size(), 32u);
}

TEST(Fp8, RejectsOtherVariantByKey) {
  const WrongConfig configs[] = {
      {{{"fmt", "e5m2"}}, "fmt: needs e4m3; it is e5m2"},
      {{{"fmt", "float8_e4m3fnuz"}}, "fmt: needs e4m3; it is float8_e4m3fnuz"},
      {{{"store_dtype", "mxfp4"}}, "store_dtype: needs e4m3; it is mxfp4"},
      {{{"quant_method", "mxfp8"}},
       "weight_block_size: needs [1, 32], as mxfp8 has it; it is [8,16]"},
      {{{"activation_scheme", "none"}}, "activation_scheme: needs dynamic or static; it is none"},
      {{{"activation_scheme", "static"}}, "activation_scheme: needs dynamic, because weights have"},
      {{{"scale_fmt", "ue4m3"}}, "scale_fmt: needs ue8m0, float or absent; it is ue4m3"}};
  for (const WrongConfig& config : configs) expect_unsupported_config(fp8({8, 16}), config);
  for (const json& block : {json::array({8}), json::array({0, 16}), json::array({1, 2, 3}),
                            json::array({INT64_MAX, 16})}) {
    expect_bad_config(fp8({8, 16}), {{{"weight_block_size", block}},
                                     "weight_block_size: needs two positive sizes"});
  }
}

// ---- Experts in one tensor ----

const std::string kStackedGateUp = "model.layers.0.mlp.experts.gate_up_proj",
                  kStackedDown = "model.layers.0.mlp.experts.down_proj";

void expect_same(const CanonicalMatrix& a, const CanonicalMatrix& b) {
  EXPECT_EQ(a.key, b.key);
  EXPECT_TRUE(std::ranges::equal(a.codes, b.codes));
  EXPECT_EQ(a.scales, b.scales);
}

TEST(Fp8, ReadsExpertsOfOneTensor) {
  for (const GroupShape group : {GroupShape{}, kPerRow, GroupShape{8, 16}, GroupShape{1, 8}}) {
    const DescribedWeights want = must(fp8(group).experts()),
                           got = must(fp8_stacked(group).experts());
    EXPECT_EQ(got.spec.scheme, want.spec.scheme);
    for (int64_t e = 0; e < 4; ++e) {
      expect_same(must(got.w2.expert(e)), must(want.w2.expert(e)));
      CanonicalMatrix w13 = must(want.w13.expert(e));
      if (group == GroupShape{}) w13.scales.assign(w13.scales.size(), w13.scales[0]);
      expect_same(must(got.w13.expert(e)), w13);
    }
  }
}

TEST(Fp8, ReadsEveryScaleShapeOfExpertsInOneTensor) {
  auto tensor = fp8_stacked(GroupShape{});
  const std::vector<float> want = must(must(tensor.experts()).w2.expert(2)).scales;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{4}, std::vector<int64_t>{4, 1, 1}}) {
    tensor.reshape(kStackedDown + "_scale", shape);
    EXPECT_EQ(must(must(tensor.experts()).w2.expert(2)).scales, want);
  }
  tensor.rename(kStackedDown + "_scale", kStackedDown + "_scale_inv");
  EXPECT_EQ(must(must(tensor.experts()).w2.expert(2)).scales, want);
}

TEST(Fp8, ReadsMxfp8ExpertsOfOneTensor) {
  auto checkpoint = fp8_stacked({1, 32}, {.layers = 1, .intermediate = 32});
  for (const auto& [name, bytes] : std::map(checkpoint.tensors)) {
    if (!name.ends_with("_scale_inv")) continue;
    std::vector<uint8_t> exponents(bytes.bytes.size() / sizeof(float));
    for (size_t i = 0; i < exponents.size(); ++i) exponents[i] = static_cast<uint8_t>(100 + i % 50);
    checkpoint.add(name, DType::kU8, bytes.shape, exponents);
  }
  const DescribedWeights weights = must(checkpoint.experts());
  EXPECT_EQ(name(weights.spec.scheme), "mxfp8-w8a8");
  EXPECT_EQ(must(weights.w13.expert(2)).scales[3], std::ldexp(1.0f, 100 + (2 * 64 + 3) % 50 - 127));
}

TEST(Fp8, NamesWrongTensorOfAllExperts) {
  const auto bad = [](const std::string& tensor, DType dtype, const std::vector<int64_t>& shape,
                      const std::string& line) {
    auto checkpoint = fp8_stacked({8, 16});
    checkpoint.retype(tensor, dtype);
    checkpoint.reshape(tensor, shape);
    expect_bad(checkpoint.experts(), {"model.safetensors", "tensor '" + tensor + "'", line});
  };
  const std::string codes = "needs f8_e4m3 [4, N, K]; it is ";
  bad(kStackedDown, DType::kF8E4M3, {3, 32, 16}, codes + "f8_e4m3 [3, 32, 16]");
  bad(kStackedDown, DType::kF8E4M3, {128, 16}, codes + "f8_e4m3 [128, 16]");
  bad(kStackedDown, DType::kI8, {4, 32, 16}, codes + "i8 [4, 32, 16]");
  bad(kStackedDown + "_scale_inv", DType::kF32, {4, 1},
      "needs shape [4, 4, 1] (blocks of 8 x 16 of [32, 16], for each expert); it is f32 [4, 1]");
  bad(kStackedDown + "_scale_inv", DType::kI32, {4, 4, 1}, "needs f32, f16 or bf16");
  for (const char* part : {"", "_scale_inv"})
    expect_missing(fp8_stacked({8, 16}), kStackedDown + part);
  auto checkpoint = fp8_stacked({8, 16});
  checkpoint.set(kStackedDown + "_scale_inv", 9, std::numeric_limits<float>::quiet_NaN());
  const DescribedWeights weights = must(checkpoint.experts());
  EXPECT_TRUE(weights.w2.expert(1).ok());
  expect_bad(weights.w2.expert(2),
             {"tensor '" + kStackedDown + "_scale_inv', expert 2", "element [2, 1, 0] is nan"});
  auto fixed = fp8_stacked(GroupShape{});
  fixed.quantization()["activation_scheme"] = "static";
  expect_unsupported(fixed.experts(), {"needs dynamic activations", "they are static"});
}

TEST(Fp8, ReadsRealFiles) {
  for (const char* folder : {"qwen3moe-fp8-block128", "dsv3-fp8-block128"}) {
    const auto opened = open_stored(folder);
    if (!opened) continue;
    const DescribedWeights weights = must(opened->moe_layer(1));
    EXPECT_EQ(name(weights.spec.scheme), "fp8-w8a8-block128x128");
    for (int64_t e = 0; e < weights.w13.num_experts(); ++e) {
      EXPECT_EQ(must(weights.w13.expert(e)).scales.size(), 4u);
      EXPECT_EQ(must(weights.w2.expert(e)).scales.size(), 2u);
    }
    if (std::string_view(folder).starts_with("qwen")) continue;
    // Block edges: 96 rows, 64 columns.
    const std::string attention = "model.layers.1.self_attn.";
    const DescribedMatrix kv_a = must(opened->linear({attention + "kv_a_proj_with_mqa"}));
    const DescribedMatrix kv_b = must(opened->linear({attention + "kv_b_proj"}));
    EXPECT_EQ(must(kv_a.expert(0)).scales.size(), 2u);
    EXPECT_EQ(must(kv_b.expert(0)).scales.size(), 4u);
  }
}

}  // namespace
}  // namespace moracle::testing::fp8_test
