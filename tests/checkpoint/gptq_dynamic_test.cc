// GPTQ's rules for single modules, files without g_idx, and files of GPTQModel.
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "expect_error.h"
#include "quant/codec.h"
#include "read_stored.h"
#include "synthetic_checkpoint.h"

namespace moracle {
namespace {

using nlohmann::json;
using testing::expect_bad;
using testing::expect_unsupported;
using testing::SyntheticCheckpoint;
using testing::SyntheticGptq;

const std::string kAttention = "model.layers.0.self_attn.";
const std::string kO = kAttention + "o_proj";
const std::string kConfig = "/config.json: quantization_config.";

// The output projection of layer 0 in another form than the rest.
SyntheticCheckpoint with_o_proj(const SyntheticGptq& format, const json& dynamic) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  checkpoint.add_gptq(kO, 32, 32, format);
  checkpoint.quantization()["dynamic"] = dynamic;
  return checkpoint;
}

std::string scheme_of(const Result<Checkpoint>& opened, const std::string& module) {
  if (!opened) return opened.error().to_string();
  const auto linear = opened->linear({module});
  if (!linear) return linear.error().to_string();
  const auto matrix = linear->expert(0);
  return matrix ? name(linear->scheme()) : matrix.error().to_string();
}

TEST(GptqDynamic, ARuleReplacesWhatItNames) {
  struct Case {
    SyntheticGptq format;
    json rule;
    const char* scheme;
  };
  const Case cases[] = {
      {{.bits = 8}, {{"bits", 8}}, "int8-w8a16-g8"},
      {{.group_size = 16}, {{"group_size", 16}}, "int4-w4a16-g16"},
      {{.group_size = -1}, {{"group_size", -1}}, "int4-w4a16-channel"},
      {{.symmetric = false}, {{"sym", false}}, "int4-w4a16-g8-asym"},
      {{.desc_act = true}, {{"desc_act", true}}, "int4-w4a16-g8"},
      {{.bits = 8, .group_size = 32, .symmetric = false},
       {{"bits", 8}, {"group_size", 32}, {"sym", false}, {"damp_percent", 0.1}},
       "int8-w8a16-g32-asym"},
  };
  for (const char* prefix : {"", "+:"}) {
    for (const Case& c : cases) {
      const auto checkpoint = with_o_proj(c.format, {{str(prefix, ".*\\.0\\..*o_proj"), c.rule}});
      const auto opened = checkpoint.open();
      EXPECT_EQ(scheme_of(opened, kO), c.scheme);
      EXPECT_EQ(scheme_of(opened, "model.layers.1.self_attn.o_proj"), "int4-w4a16-g8");
      ASSERT_TRUE(opened.ok());
      EXPECT_EQ(name(opened->moe_layer(0)->spec.scheme), "int4-w4a16-g8");
    }
  }
}

TEST(GptqDynamic, WithoutItsRuleAModuleDoesNotFit) {
  const auto opened = with_o_proj({.bits = 8}, json::object()).open();
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  const auto o = opened->linear({kO});
  expect_bad(o, {"model.safetensors", "tensor '" + kO + ".qzeros'", "needs i32 ", "; it is i32 "});
}

TEST(GptqDynamic, ExpressionsMatchFromTheStartOfAName) {
  // "self_attn" is in the name, but not at its start.
  const auto opened = with_o_proj({}, {{"self_attn", {{"bits", 8}}}}).open();
  EXPECT_EQ(scheme_of(opened, kO), "int4-w4a16-g8");
  // A start is enough.
  const auto all = with_o_proj({.bits = 8}, {{"model\\.layers\\.0\\.self", {{"bits", 8}}}}).open();
  EXPECT_EQ(scheme_of(all, kO), "int8-w8a16-g8");
}

TEST(GptqDynamic, AModuleThatIsLeftOutIsPlain) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  checkpoint.quantization()["dynamic"] = {{"-:.*o_proj", json::object()}};
  expect_bad(checkpoint.open()->linear({kO}),
             {"module '" + kO + "'",
              "needs to be stored unquantized, since the quantization config leaves it out",
              "the file holds it quantized"});
  for (const char* part : {".qweight", ".qzeros", ".scales", ".g_idx"})
    checkpoint.remove(kO + part);
  checkpoint.add_floats(kO + ".weight", {32, 32});
  EXPECT_EQ(scheme_of(checkpoint.open(), kO), "bf16");
}

// config.json as text, since JSON values sort their keys.
Result<Checkpoint> open_with(const SyntheticCheckpoint& checkpoint, const std::string& dynamic) {
  SyntheticCheckpoint marked = checkpoint;
  marked.quantization()["dynamic"] = "HERE";
  const testing::TemporaryFolder folder;
  MORACLE_CHECK(marked.write(folder.path()));
  std::string text = marked.config.dump();
  text.replace(text.find("\"HERE\""), 6, dynamic);
  folder.write("config.json", text);
  return Checkpoint::open(folder.path());
}

TEST(GptqDynamic, TheFirstRuleThatMatchesCounts) {
  const auto checkpoint = with_o_proj({.bits = 8}, json::object());
  const std::string eight = R"(".*o_proj": {"bits": 8})", four = R"(".*": {"bits": 4})";
  EXPECT_EQ(scheme_of(open_with(checkpoint, "{" + eight + "," + four + "}"), kO), "int8-w8a16-g8");
  const auto other = open_with(checkpoint, "{" + four + "," + eight + "}");
  ASSERT_TRUE(other.ok()) << other.error().to_string();
  EXPECT_FALSE(other->linear({kO}).ok());

  const std::string skip = R"("-:.*o_proj": {})", keep = R"("+:.*": {})";
  const auto plain = SyntheticCheckpoint::gptq();
  EXPECT_EQ(scheme_of(open_with(plain, "{" + keep + "," + skip + "}"), kO), "int4-w4a16-g8");
  const auto skipped = open_with(plain, "{" + skip + "," + keep + "}");
  ASSERT_TRUE(skipped.ok()) << skipped.error().to_string();
  expect_bad(skipped->linear({kO}), {"needs to be stored unquantized"});
}

TEST(GptqDynamic, TheOrderIsThatOfTheFileBesideToo) {
  auto checkpoint = with_o_proj({.bits = 8}, json::object());
  checkpoint.config.erase("quantization_config");
  for (const bool eight_first : {true, false}) {
    const std::string eight = R"("x*.*o_proj": {"bits": 8})", four = R"(".*": {"bits": 4})";
    checkpoint.files["quantize_config.json"] =
        R"({"bits": 4, "group_size": 8, "dynamic": {)" +
        (eight_first ? eight + "," + four : four + "," + eight) + "}}";
    const auto opened = checkpoint.open();
    ASSERT_TRUE(opened.ok()) << opened.error().to_string();
    EXPECT_EQ(opened->linear({kO}).ok(), eight_first);
  }
}

TEST(GptqDynamic, ExpertsOfOneLayerMayDifferFromAnothers) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  for (int e = 0; e < 4; ++e) {
    checkpoint.add_gptq(SyntheticCheckpoint::expert(1, e, "gate_proj"), 16, 32, {.bits = 8});
    checkpoint.add_gptq(SyntheticCheckpoint::expert(1, e, "up_proj"), 16, 32, {.bits = 8});
    checkpoint.add_gptq(SyntheticCheckpoint::expert(1, e, "down_proj"), 32, 16, {.bits = 8});
  }
  checkpoint.quantization()["dynamic"] = {{".*\\.1\\.mlp\\.experts", {{"bits", 8}}}};
  const auto opened = checkpoint.open();
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  EXPECT_EQ(name(opened->moe_layer(0)->spec.scheme), "int4-w4a16-g8");
  const auto second = opened->moe_layer(1);
  ASSERT_TRUE(second.ok()) << second.error().to_string();
  EXPECT_EQ(name(second->spec.scheme), "int8-w8a16-g8");
  EXPECT_TRUE(second->w13.expert(3).ok());

  checkpoint.quantization()["dynamic"] = {{".*\\.1\\.mlp\\.experts.*(gate|up)", {{"bits", 8}}}};
  checkpoint.add_gptq(SyntheticCheckpoint::expert(1, 0, "down_proj"), 32, 16, {});
  for (int e = 1; e < 4; ++e) {
    checkpoint.add_gptq(SyntheticCheckpoint::expert(1, e, "down_proj"), 32, 16, {});
  }
  expect_unsupported(checkpoint.open()->moe_layer(1), {"one scheme for w13 and w2"});
}

TEST(GptqDynamic, ARuleThatMakesNoSenseIsNamed) {
  const std::pair<json, const char*> bad[] = {
      {{{"a.*", {{"bits", 9}}}}, "dynamic.a.*.bits: needs a whole number from 2 to 8; it is 9"},
      {{{"a", {{"group_size", 0}}}}, "dynamic.a.group_size: needs -1 or a positive size"},
      {{{"a", {{"sym", 1}}}}, "dynamic.a.sym: needs true or false; it is 1"},
      {{{"+:a", false}}, "dynamic.+:a: needs an object; it is false"},
      {{{"+:a", nullptr}}, "dynamic.+:a: needs an object; it is null"},
      {json::array({"a"}), "dynamic: needs an object; it is [\"a\"]"},
  };
  for (const auto& [dynamic, line] : bad) {
    auto checkpoint = SyntheticCheckpoint::gptq();
    checkpoint.quantization()["dynamic"] = dynamic;
    expect_bad(checkpoint.open(), {kConfig + line});
  }
  auto checkpoint = SyntheticCheckpoint::gptq();
  checkpoint.quantization()["dynamic"] = {{"-:(", json::object()}};
  expect_bad(checkpoint.open(),
             {"/config.json: module pattern 're:(': needs a regular expression"});
  const std::pair<json, const char*> unsupported[] = {
      {{{"a", {{"bits", 3}}}}, "dynamic.a.bits: needs 4 or 8; it is 3"},
      {{{"a", {{"format", "gptq_v2"}}}},
       "dynamic.a.format: needs nothing, the same for all modules; it is \"gptq_v2\""},
      {{{"a", {{"adapter", {{"rank", 4}}}}}}, "dynamic.a.adapter: needs nothing"},
  };
  for (const auto& [dynamic, line] : unsupported) {
    checkpoint.quantization()["dynamic"] = dynamic;
    expect_unsupported(checkpoint.open(), {kConfig + line});
  }
}

TEST(GptqDynamic, NoRulesAreNoChange) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  for (const json& dynamic : {json(nullptr), json::object()}) {
    checkpoint.quantization()["dynamic"] = dynamic;
    EXPECT_TRUE(checkpoint.experts().ok());
  }
}

TEST(GptqWithoutGroupIndex, ColumnsRunFromLeftToRight) {
  for (const bool symmetric : {true, false}) {
    auto checkpoint = SyntheticCheckpoint::gptq({.symmetric = symmetric});
    const auto with = checkpoint.experts();
    ASSERT_TRUE(with.ok()) << with.error().to_string();
    for (int e = 0; e < 4; ++e) {
      for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
        checkpoint.remove(SyntheticCheckpoint::expert(0, e, part) + ".g_idx");
      }
    }
    const auto without = checkpoint.experts();
    ASSERT_TRUE(without.ok()) << without.error().to_string();
    EXPECT_FALSE(without->spec.group_index);
    std::vector<double> a(32), b(32);
    for (int64_t r = 0; r < 32; ++r) {
      dequantize_row(*with->w13.expert(2), r, a.data());
      dequantize_row(*without->w13.expert(2), r, b.data());
      EXPECT_EQ(a, b);
    }
  }
}

TEST(GptqWithoutGroupIndex, DescActNeedsIt) {
  for (const int64_t group : {8, -1}) {
    auto checkpoint = SyntheticCheckpoint::gptq({.group_size = group, .desc_act = true});
    const std::string name = SyntheticCheckpoint::expert(0, 1, "up_proj") + ".g_idx";
    checkpoint.remove(name);
    expect_bad(checkpoint.experts(),
               {"model.safetensors", "tensor '" + name + "'", "it is missing"});
  }
}

TEST(GptqStored, InActOrder) {
  testing::expect_stored("qwen3moe-gptq-int4-g32-act", "gptq", "int4-w4a16-g32");
}
TEST(GptqStored, WithZeroPoints) {
  testing::expect_stored("qwen3moe-gptq-int4-g64-asym", "gptq", "int4-w4a16-g64-asym");
}

}  // namespace
}  // namespace moracle
