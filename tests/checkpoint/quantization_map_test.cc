// Tests the values of --quantization and their effect on a checkpoint's modules.
#include <string>
#include <vector>

#include "checkpoint/online/online.h"
#include "checkpoint/producers/ct_synthetic.h"
#include "reader_fixture.h"

namespace moracle::testing::quantization_map_test {
namespace {

using ::testing::HasSubstr;

std::string scheme_of(const QuantizationMap& map, const std::string& module) {
  const auto scheme = map.for_module(module);
  return scheme ? name(*scheme) : "none";
}

void expect_refused(const Status& status, std::initializer_list<std::string> parts) {
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(status.error().place, "quantization");
  for (const std::string& part : parts) EXPECT_THAT(status.error().to_string(), HasSubstr(part));
}
Status parsed(const std::string& text) {
  const auto map = QuantizationMap::parse(text);
  return map ? Status() : Status(map.error());
}
Status chosen(const SyntheticCheckpoint& checkpoint, const std::string& text) {
  const Checkpoint opened = must(checkpoint.open());
  const auto choice = OnlineChoice::make(opened, must(QuantizationMap::parse(text)));
  return choice ? Status() : Status(choice.error());
}

TEST(QuantizationMap, SingleSchemeAppliesToEveryModule) {
  const auto map = must(QuantizationMap::parse("fp8-per-channel"));
  EXPECT_EQ(scheme_of(map, "model.layers.0.self_attn.q_proj"), "fp8-w8a8-channel");
  EXPECT_EQ(scheme_of(map, ""), "fp8-w8a8-channel");
  EXPECT_TRUE(QuantizationMap().empty());
  EXPECT_EQ(scheme_of(QuantizationMap(), "any"), "none");
}

TEST(QuantizationMap, FirstMatchingPatternDecidesElseDefault) {
  // The default counts last at any position.
  const auto map = must(
      QuantizationMap::parse("*.self_attn.o_proj=none,mxfp8,*.self_attn.*=int8-w8a8,*.0.*=none"));
  EXPECT_EQ(scheme_of(map, "model.layers.0.self_attn.o_proj"), "none");
  EXPECT_EQ(scheme_of(map, "model.layers.0.self_attn.q_proj"), "int8-w8a8");
  EXPECT_EQ(scheme_of(map, "model.layers.0.mlp.up_proj"), "none");
  EXPECT_EQ(scheme_of(map, "model.layers.1.mlp.up_proj"), "mxfp8-w8a8");
  const auto some = must(QuantizationMap::parse("*.experts.*=fp8-per-block"));
  EXPECT_EQ(scheme_of(some, "model.layers.1.self_attn.q_proj"), "none");
}

TEST(QuantizationMap, RejectsNameThatIsNotAnOnlineScheme) {
  for (const char* text : {"", "fp8", "a=nosuch", "a=int4-w4a16-g128", "*=mxfp8,b=", "mxfp8,none"})
    expect_refused(parsed(text), {"fp8-per-block", "pattern=scheme", "is unknown"});
  expect_refused(parsed("=mxfp8,a=none"), {"pattern=name entries, separated by commas"});
  expect_refused(parsed("a=none,mxfp8,fp8-per-block"),
                 {"at most one scheme without a pattern", "'fp8-per-block' is the second one"});
}

TEST(OnlineChoice, KeepsRoutersEmbeddingAndOutput) {
  const Checkpoint checkpoint = must(SyntheticCheckpoint::plain().open());
  const auto choice = must(OnlineChoice::make(checkpoint, must(QuantizationMap::parse("mxfp8"))));
  std::vector<std::string> left;
  for (size_t i = 0; i < choice.modules().size(); ++i) {
    if (!choice.scheme(i)) left.push_back(choice.modules()[i].name);
  }
  EXPECT_THAT(left, ::testing::ElementsAre("lm_head", "model.embed_tokens",
                                           "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"));
  EXPECT_EQ(choice.modules().size(), left.size() + 2 * (4 + 4 * 3));
}

TEST(OnlineChoice, KeepsSharedExpertGate) {
  auto checkpoint = SyntheticCheckpoint::plain();
  checkpoint.add_floats("model.layers.0.mlp.shared_expert_gate.weight", {1, 32});
  checkpoint.add_floats("model.layers.0.mlp.shared_expert.up_proj.weight", {16, 32});
  for (const LinearModule& module : linear_modules(must(checkpoint.open()))) {
    if (module.name.find("shared") == module.name.npos) continue;
    EXPECT_EQ(module.untouched, module.name.ends_with("shared_expert_gate")) << module.name;
  }
}

TEST(OnlineChoice, NamesPatternWithoutMatch) {
  expect_refused(
      chosen(SyntheticCheckpoint::plain(), "*.7.*=mxfp8"),
      {"'*.7.*' matches no linear layer", "such as 'model.layers.0.mlp.experts.0.down_proj'"});
  expect_refused(chosen(SyntheticCheckpoint::plain(), "*.norm=none,mxfp8"),
                 {"'*.norm' matches no linear layer"});
}

TEST(OnlineChoice, RejectsPatternForModulesThatStayUnquantized) {
  const auto checkpoint = SyntheticCheckpoint::plain();
  expect_refused(chosen(checkpoint, "*.mlp.*=mxfp8"),
                 {"'*.mlp.*' matches it", "put 'model.layers.0.mlp.gate=none' first"});
  expect_refused(chosen(checkpoint, "lm_head=mxfp8"),
                 {"exclude 'lm_head', which is never quantized"});
  expect_refused(chosen(checkpoint, "*embed*=mxfp8"), {"'model.embed_tokens'"});
  EXPECT_TRUE(chosen(checkpoint, "*.mlp.gate=none,*.layers.*=mxfp8"));
  EXPECT_TRUE(chosen(checkpoint, "lm_head=none,mxfp8"));
}

TEST(OnlineChoice, RejectsTwoSchemesInOneStack) {
  const auto checkpoint = SyntheticCheckpoint::plain();
  expect_refused(chosen(checkpoint, "*.q_proj=none,mxfp8"),
                 {"model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.q_proj",
                  "mxfp8-w8a8 and none"});
  expect_refused(chosen(checkpoint, "*.experts.3.*=fp8-per-block,mxfp8"),
                 {"model.layers.0.mlp.experts.3.down_proj"});
  expect_refused(chosen(checkpoint, "*.down_proj=int8-per-channel"), {"one scheme for"});
  EXPECT_TRUE(chosen(checkpoint, "*.layers.1.mlp.experts.*=fp8-per-block,mxfp8"));
}

TEST(OnlineChoice, RejectsQuantizedFile) {
  const Checkpoint gptq = must(SyntheticCheckpoint::gptq().open());
  const auto map = must(QuantizationMap::parse("mxfp8"));
  expect_unsupported(OnlineChoice::make(gptq, map),
                     {gptq.folder(), "model.layers.0.mlp.experts",
                      "needs unquantized weights for an online scheme; the file has "
                      "int4-w4a16-g8"});
  expect_unsupported(gptq.moe_layer(0, map), {"int4-w4a16-g8"});
}

TEST(OnlineChoice, PatternsQuantizeWhatQuantizedFileLeft) {
  auto source = SyntheticCheckpoint::gptq();
  source.add_floats("model.layers.0.mlp.extra_proj.weight", {32, 32});
  const auto choice = must(
      OnlineChoice::make(must(source.open()), must(QuantizationMap::parse("*.extra_proj=mxfp8"))));
  for (size_t i = 0; i < choice.modules().size(); ++i)
    EXPECT_EQ(choice.scheme(i).has_value(), choice.modules()[i].name.ends_with("extra_proj"));
  expect_refused(chosen(source, "*.q_proj=mxfp8"),
                 {"'*.q_proj' matches no linear layer in 16 or 32 bits"});
}

}  // namespace
}  // namespace moracle::testing::quantization_map_test
