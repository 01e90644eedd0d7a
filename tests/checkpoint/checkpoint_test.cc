// Tests a whole checkpoint folder: opening it, claiming its tensors, rejecting bad ones.
#include "moracle/checkpoint.h"

#include <string>
#include <vector>

#include "base/text.h"
#include "expect_error.h"
#include "moracle/model.h"
#include "quant/codec.h"
#include "support/sample.h"
#include "synthetic_checkpoint.h"

namespace moracle::checkpoint_test {
namespace {

using testing::expect_bad;
using testing::SyntheticCheckpoint;
using testing::SyntheticSize;
using testing::TemporaryFolder;

const std::string kGate = SyntheticCheckpoint::expert(0, 1, "gate_proj");
const std::string kDown = SyntheticCheckpoint::expert(0, 1, "down_proj");

// Describes the whole model and reads every expert.
Status read_all(const SyntheticCheckpoint& synthetic) {
  MORACLE_TRY(const Checkpoint checkpoint, synthetic.open());
  MORACLE_CHECK(outline(checkpoint));
  for (const int64_t layer : checkpoint.moe_layers()) {
    MORACLE_TRY(const DescribedWeights weights, checkpoint.moe_layer(layer));
    for (int64_t e = 0; e < weights.spec.num_experts; ++e) {
      MORACLE_CHECK(weights.w13.expert(e));
      MORACLE_CHECK(weights.w2.expert(e));
    }
  }
  return {};
}

struct Named {
  const char* name;
  SyntheticCheckpoint (*make)(const SyntheticSize&);
  std::string weight;  // where a module keeps its codes
};
std::ostream& operator<<(std::ostream& out, const Named& named) {
  return out << named.name;
}
const Named kProducers[] = {
    {"plain", [](const SyntheticSize& size) { return SyntheticCheckpoint::plain(size); },
     ".weight"},
    {"gptq", [](const SyntheticSize& size) { return SyntheticCheckpoint::gptq({}, size); },
     ".qweight"},
    {"compressed-tensors",
     [](const SyntheticSize& size) { return SyntheticCheckpoint::int8(size); }, ".weight"},
};

class EveryProducer : public ::testing::TestWithParam<Named> {
 protected:
  static SyntheticCheckpoint make() { return GetParam().make({}); }
  static SyntheticCheckpoint one_layer() { return GetParam().make({.layers = 1}); }

  // Changes each tensor in turn. Every change must be an error that names the tensor's module.
  static void spoil_each(
      const std::function<void(SyntheticCheckpoint&, const std::string&)>& spoil) {
    const SyntheticCheckpoint good = one_layer();
    testing::Sample sample(GetParam().name);
    for (const auto& [name, tensor] : good.tensors) {
      if (!sample.takes()) continue;
      SyntheticCheckpoint bad = good;
      spoil(bad, name);
      const Status status = read_all(bad);
      ASSERT_FALSE(status.ok()) << name;
      EXPECT_EQ(status.error().kind, ErrorKind::kBadFile) << status.error().to_string();
      // q, k and v are described as one matrix, whose size is checked under the name of the first.
      const bool stacked = name.find("k_proj") != name.npos || name.find("v_proj") != name.npos;
      const std::string module =
          name.substr(0, stacked ? name.find("self_attn") + 9 : name.rfind('.'));
      EXPECT_THAT(status.error().to_string(), ::testing::HasSubstr(module));
      EXPECT_THAT(status.error().file, ::testing::EndsWith("model.safetensors"));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, EveryProducer, ::testing::ValuesIn(kProducers),
                         [](const auto& instance) {
                           std::string name = instance.param.name;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(EveryProducer, IsRecognizedAndAllTensorsAreRead) {
  const auto checkpoint = make().open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  EXPECT_EQ(checkpoint->producer(), GetParam().name);
  EXPECT_EQ(checkpoint->architecture(), "Qwen3MoeForCausalLM");
  EXPECT_EQ(checkpoint->num_layers(), 2);
  EXPECT_EQ(checkpoint->moe_layers(), (std::vector<int64_t>{0, 1}));
  const auto what = outline(*checkpoint);
  ASSERT_TRUE(what.ok()) << what.error().to_string();
  EXPECT_EQ(what->bytes, checkpoint->total_bytes());
  const Status status = read_all(make());
  EXPECT_TRUE(status.ok()) << status.error().to_string();
}

TEST_P(EveryProducer, DescribesALayerFromConfigAndFile) {
  const auto weights = make().experts(1);
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  const LayerSpec& spec = weights->spec;
  EXPECT_EQ(spec.name, "model.layers.1.mlp.experts");
  EXPECT_EQ(spec.num_experts, 4);
  EXPECT_EQ(spec.top_k, 2);
  EXPECT_EQ(spec.hidden_size, 32);
  EXPECT_EQ(spec.intermediate_size, 16);
  EXPECT_TRUE(spec.routing.renormalize);
  EXPECT_EQ(spec.matrices()[0], weights->w13.shape());
  EXPECT_EQ(spec.matrices()[1], weights->w2.shape());
  EXPECT_EQ(weights->w13.num_experts(), 4);
}

TEST_P(EveryProducer, NamesMissingTensor) {
  spoil_each([](SyntheticCheckpoint& bad, const std::string& name) {
    // Old GPTQ files have no g_idx if columns are in order. Without g_idx the file is still
    // complete.
    bad.remove(name.ends_with(".g_idx") ? name.substr(0, name.rfind('.')) + ".scales" : name);
  });
}
TEST_P(EveryProducer, NamesRenamedTensor) {
  spoil_each(
      [](SyntheticCheckpoint& bad, const std::string& name) { bad.rename(name, name + "_"); });
}
TEST_P(EveryProducer, NamesTensorOfWrongType) {
  spoil_each([](SyntheticCheckpoint& bad, const std::string& name) {
    bad.retype(name, bad.at(name).dtype == DType::kI32 ? DType::kF32 : DType::kI64);
  });
}
TEST_P(EveryProducer, NamesTensorOfWrongShape) {
  spoil_each([](SyntheticCheckpoint& bad, const std::string& name) {
    std::vector<int64_t> shape = bad.at(name).shape;
    shape.insert(shape.begin(), 1);
    bad.reshape(name, shape);
  });
  spoil_each([](SyntheticCheckpoint& bad, const std::string& name) {
    std::vector<int64_t> shape = bad.at(name).shape;
    shape[0] += 8;
    bad.reshape(name, shape);
  });
  spoil_each([](SyntheticCheckpoint& bad, const std::string& name) {
    bad.reshape(name, std::vector<int64_t>(bad.at(name).shape.size(), 0));
  });
}
TEST_P(EveryProducer, NamesUnreadTensor) {
  for (const std::string name :
       {"model.layers.0.mlp.experts.0.gate_proj.extra", "model.layers.0.extra",
        "model.layers.2.mlp.gate.weight", "extra"}) {
    auto bad = make();
    bad.add<float>(name, DType::kF32, {1}, {1});
    expect_bad(read_all(bad),
               {"model.safetensors", "tensor '" + name + "'", "the model does not use it"});
  }
}

TEST_P(EveryProducer, RejectsExpertIndexBeyondExpertCount) {
  auto bad = make();
  bad.config["num_experts"] = 3;
  expect_bad(bad.experts(), {"model.safetensors", "tensor 'model.layers.0.mlp.experts.3.",
                             "needs to belong to one of 3 experts", "the model does not use it"});
  bad.config["num_experts"] = 5;
  expect_bad(bad.experts(), {"model.safetensors", "module 'model.layers.0.mlp.experts.4.gate_proj'",
                             "the file has no such tensor"});
  auto leading_zero = make();
  leading_zero.add_floats("model.layers.0.mlp.experts.01.gate_proj.weight", {16, 32});
  expect_bad(leading_zero.experts(), {"experts.01.gate_proj.weight'", "the model does not use it"});
}

// A bias that the layer cannot use must not be dropped silently.
TEST_P(EveryProducer, ClaimsOrRejectsExpertBias) {
  auto biased = make();
  for (int e = 0; e < 4; ++e) {
    for (const auto& [part, n] : {std::pair{"gate_proj", 16}, {"up_proj", 16}, {"down_proj", 32}}) {
      biased.add_floats(SyntheticCheckpoint::expert(0, e, part) + ".bias", {n});
    }
  }
  const auto weights = biased.experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  EXPECT_TRUE(weights->spec.bias);
  const auto w13 = weights->w13.expert(1);
  ASSERT_TRUE(w13.ok());
  ASSERT_EQ(w13->bias.size(), 32u);
  EXPECT_EQ(w13->bias[3], bf16_to_float(biased.get<uint16_t>(kGate + ".bias", 3)));
  EXPECT_EQ(weights->w2.expert(1)->bias.size(), 32u);

  auto one_expert = make();
  one_expert.add_floats(kDown + ".bias", {32});
  expect_bad(one_expert.experts(),
             {"tensor '" + kDown, "needs the scheme of expert 0", "with bias"});
  auto gate_only = make();
  gate_only.add_floats(kGate + ".bias", {16});
  expect_bad(gate_only.experts(),
             {"module '" + SyntheticCheckpoint::expert(0, 1, "up_proj") + "'",
              "needs the same scheme and input size as '" + kGate + "'", "with bias"});
  auto unknown = make();
  unknown.add_floats("model.layers.0.mlp.experts.down_proj_bias", {4, 32});
  expect_bad(unknown.experts(),
             {"tensor 'model.layers.0.mlp.experts.down_proj_bias'", "the model does not use it"});
  auto wrong = make();
  wrong.add_floats(kGate + ".bias", {1, 16});
  expect_bad(wrong.experts(),
             {"tensor '" + kGate + ".bias'", "needs shape [16]; it is bf16 [1, 16]"});
  wrong.add<int32_t>(kGate + ".bias", DType::kI32, {16}, std::vector<int32_t>(16));
  expect_bad(wrong.experts(),
             {"tensor '" + kGate + ".bias'", "needs f32, f16 or bf16; it is i32 [16]"});
}

TEST_P(EveryProducer, RejectsShapesThatDifferFromConfig) {
  const std::pair<const char*, const char*> cases[] = {
      {"hidden_size", "(from config.json)"}, {"moe_intermediate_size", "(from config.json)"}};
  for (const auto& [key, line] : cases) {
    auto bad = make();
    bad.config[key] = 24;
    expect_bad(bad.experts(), {"model.safetensors",
                               "tensor 'model.layers.0.mlp.experts.0.gate_proj" + GetParam().weight,
                               line, "[16, 32]"});
  }
}

// If one size is 0, the other may be any number, even one larger than memory.
TEST_P(EveryProducer, RejectsEmptyMatrix) {
  const std::string name = "lm_head.weight";
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0, 32}, {24, 0}, {int64_t{1} << 50, 0}, {0, int64_t{1} << 50}}) {
    auto checkpoint = make();
    checkpoint.reshape(name, shape);
    expect_bad(checkpoint.open()->linear({"lm_head"}),
               {"tensor '" + name + "'", "needs at least one row and one column",
                str("the matrix is bf16 [", shape[0], ", ", shape[1], "]")});
  }
}

TEST_P(EveryProducer, ReadsUnalignedTensors) {
  auto odd = make();
  odd.add<uint8_t>("a", DType::kU8, {3}, {1, 2, 3});
  const auto weights = odd.experts(), aligned = make().experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  const auto matrix = weights->w2.expert(2), same = aligned->w2.expert(2);
  ASSERT_TRUE(matrix.ok() && same.ok());
  std::vector<double> row(16), expected(16);
  for (int64_t n = 0; n < 32; ++n) {
    dequantize_row(*matrix, n, row.data());
    dequantize_row(*same, n, expected.data());
    EXPECT_EQ(row, expected);
  }
}

TEST_P(EveryProducer, ReadsAnySharding) {
  // Neighbouring tensors lie in different shards, so no linear layer lies in one shard.
  const auto checkpoint = make();
  int next = 0;
  std::map<std::string, int> shards;
  for (const auto& [name, tensor] : checkpoint.tensors) shards[name] = next++ % 3;
  const TemporaryFolder folder;
  ASSERT_TRUE(
      checkpoint.write_shards(folder.path(), 3, [&](const auto& name) { return shards[name]; })
          .ok());
  const auto opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  const auto what = outline(*opened);
  ASSERT_TRUE(what.ok()) << what.error().to_string();
  const auto weights = opened->moe_layer(0), whole = checkpoint.experts();
  const auto matrix = weights->w2.expert(3), same = whole->w2.expert(3);
  ASSERT_TRUE(matrix.ok() && same.ok());
  EXPECT_TRUE(std::ranges::equal(matrix->codes, same->codes));
  EXPECT_EQ(matrix->scales, same->scales);
}

TEST_P(EveryProducer, LayerOutlivesCheckpoint) {
  std::optional<DescribedWeights> weights;
  {
    const auto checkpoint = make().open();
    ASSERT_TRUE(checkpoint.ok());
    weights = *checkpoint->moe_layer(0);
  }
  EXPECT_TRUE(weights->w13.expert(0).ok());
}

}  // namespace
}  // namespace moracle::checkpoint_test
