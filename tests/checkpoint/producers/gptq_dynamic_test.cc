// Tests GPTQ rules for single modules, files without g_idx, and files of GPTQModel.
#include "checkpoint/read_stored.h"
#include "checkpoint/reader_fixture.h"

namespace moracle::testing::gptq_dynamic_test {
namespace {

using nlohmann::json;

const std::string kO = kAttention + "o_proj";

// The output projection of layer 0 has another format than the rest.
SyntheticCheckpoint with_o_proj(const SyntheticGptq& format, const json& dynamic) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  checkpoint.add_gptq(kO, 32, 32, format);
  checkpoint.quantization()["dynamic"] = dynamic;
  return checkpoint;
}

std::string scheme_of(const Checkpoint& opened, const std::string& module) {
  const DescribedMatrix linear = must(opened.linear({module}));
  must(linear.expert(0));
  return name(linear.scheme());
}

TEST(GptqDynamic, RuleReplacesTheKeysItNames) {
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
      const Checkpoint opened = must(checkpoint.open());
      EXPECT_EQ(scheme_of(opened, kO), c.scheme);
      EXPECT_EQ(scheme_of(opened, "model.layers.1.self_attn.o_proj"), "int4-w4a16-g8");
      EXPECT_EQ(name(must(opened.moe_layer(0)).spec.scheme), "int4-w4a16-g8");
    }
  }
}

TEST(GptqDynamic, RejectsModuleWithoutItsRule) {
  const Checkpoint opened = must(with_o_proj({.bits = 8}, json::object()).open());
  expect_bad(opened.linear({kO}),
             {"model.safetensors", "tensor '" + kO + ".qzeros'", "needs i32 ", "; it is i32 "});
}

TEST(GptqDynamic, ExpressionsMatchFromStartOfName) {
  // "self_attn" is in the name, but not at its start.
  const auto inside = with_o_proj({}, {{"self_attn", {{"bits", 8}}}});
  EXPECT_EQ(scheme_of(must(inside.open()), kO), "int4-w4a16-g8");
  // The pattern may match only the start of the name.
  const auto start = with_o_proj({.bits = 8}, {{"model\\.layers\\.0\\.self", {{"bits", 8}}}});
  EXPECT_EQ(scheme_of(must(start.open()), kO), "int8-w8a16-g8");
}

TEST(GptqDynamic, ExclusionDecidesOnlyBesideFloats) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  checkpoint.quantization()["dynamic"] = {{"-:.*o_proj", json::object()}};
  EXPECT_EQ(scheme_of(checkpoint, kO), "int4-w4a16-g8");
  checkpoint = with_floats(checkpoint, kO);
  EXPECT_EQ(scheme_of(checkpoint, kO), "bf16");
  for (const char* part : {".qweight", ".qzeros", ".scales", ".g_idx"})
    checkpoint.remove(kO + part);
  EXPECT_EQ(scheme_of(checkpoint, kO), "bf16");
}

// The order of the rules matters, and JSON values sort their keys. So config.json is text here.
Checkpoint open_with(SyntheticCheckpoint checkpoint, const std::string& dynamic) {
  checkpoint.quantization()["dynamic"] = "HERE";
  const TemporaryFolder folder;
  must(checkpoint.write(folder.path()));
  std::string text = checkpoint.config.dump();
  text.replace(text.find("\"HERE\""), 6, dynamic);
  folder.write("config.json", text);
  return must(Checkpoint::open(folder.path()));
}

TEST(GptqDynamic, FirstMatchingRuleDecides) {
  const auto checkpoint = with_o_proj({.bits = 8}, json::object());
  const std::string eight = R"(".*o_proj": {"bits": 8})", four = R"(".*": {"bits": 4})";
  EXPECT_EQ(scheme_of(open_with(checkpoint, "{" + eight + "," + four + "}"), kO), "int8-w8a16-g8");
  EXPECT_FALSE(open_with(checkpoint, "{" + four + "," + eight + "}").linear({kO}).ok());

  const std::string skip = R"("-:.*o_proj": {})", keep = R"("+:.*": {})";
  const auto both = with_floats(SyntheticCheckpoint::gptq(), kO);
  EXPECT_EQ(scheme_of(open_with(both, "{" + keep + "," + skip + "}"), kO), "int4-w4a16-g8");
  EXPECT_EQ(scheme_of(open_with(both, "{" + skip + "," + keep + "}"), kO), "bf16");
}

TEST(GptqDynamic, KeepsRuleOrderOfSeparateFile) {
  auto checkpoint = with_o_proj({.bits = 8}, json::object());
  checkpoint.config.erase("quantization_config");
  for (const bool eight_first : {true, false}) {
    const std::string eight = R"("x*.*o_proj": {"bits": 8})", four = R"(".*": {"bits": 4})";
    checkpoint.files["quantize_config.json"] =
        R"({"bits": 4, "group_size": 8, "dynamic": {)" +
        (eight_first ? eight + "," + four : four + "," + eight) + "}}";
    EXPECT_EQ(must(checkpoint.open()).linear({kO}).ok(), eight_first);
  }
}

TEST(GptqDynamic, AllowsDifferentSchemesPerLayer) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  for (int e = 0; e < 4; ++e) {
    checkpoint.add_gptq(SyntheticCheckpoint::expert(1, e, "gate_proj"), 16, 32, {.bits = 8});
    checkpoint.add_gptq(SyntheticCheckpoint::expert(1, e, "up_proj"), 16, 32, {.bits = 8});
    checkpoint.add_gptq(SyntheticCheckpoint::expert(1, e, "down_proj"), 32, 16, {.bits = 8});
  }
  checkpoint.quantization()["dynamic"] = {{".*\\.1\\.mlp\\.experts", {{"bits", 8}}}};
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_EQ(name(must(opened.moe_layer(0)).spec.scheme), "int4-w4a16-g8");
  const DescribedWeights second = must(opened.moe_layer(1));
  EXPECT_EQ(name(second.spec.scheme), "int8-w8a16-g8");
  EXPECT_TRUE(second.w13.expert(3).ok());
}

// One kernel multiplies a matrix of all experts: the narrower weights are widened, which changes no
// value. The other matrix stays as it is.
TEST(GptqDynamic, WidensModulesOfOneMatrix) {
  struct Case {
    const char* rule;
    json change;
    SyntheticGptq format;
    std::vector<std::string> modules;
    const char* scheme;
  };
  const SyntheticGptq eight{.bits = 8}, asymmetric{.group_size = 16, .symmetric = false};
  const SyntheticGptq small{.bits = 8, .group_size = 4, .desc_act = true};
  const Case cases[] = {
      {".*down_proj",
       {{"bits", 8}},
       eight,
       {"0.down", "1.down", "2.down", "3.down"},
       "int4-w4a16-g8 + int8-w8a16-g8"},
      {".*experts\\.2\\.", {{"bits", 8}}, eight, {"2.gate", "2.up", "2.down"}, "int8-w8a16-g8"},
      {".*2\\.up_proj", {{"bits", 8}}, eight, {"2.up"}, "int8-w8a16-g8 + int4-w4a16-g8"},
      {".*2\\.down_proj",
       {{"bits", 8}, {"group_size", 4}, {"desc_act", true}},
       small,
       {"2.down"},
       "int4-w4a16-g8 + int8-w8a16-g4"},
      {".*3\\.gate",
       {{"group_size", 16}, {"sym", false}},
       asymmetric,
       {"3.gate"},
       "int4-w4a16-g8-asym + int4-w4a16-g8"},
  };
  for (const Case& c : cases) {
    auto checkpoint = SyntheticCheckpoint::gptq();
    for (const std::string& module : c.modules) {
      const bool down = module.ends_with("down");
      checkpoint.add_gptq(str("model.layers.0.mlp.experts.", module, "_proj"), down ? 32 : 16,
                          down ? 16 : 32, c.format);
    }
    checkpoint.quantization()["dynamic"] = {{c.rule, c.change}};
    const Checkpoint opened = must(checkpoint.open());
    const DescribedWeights weights = must(opened.moe_layer(0));
    EXPECT_EQ(weights.spec.scheme_name(), c.scheme);
    EXPECT_EQ(weights.spec.group_index, c.format.desc_act);
    // The modules one by one are not widened.
    const Value stored = [&](const std::string& module, int64_t n, int64_t k) {
      static std::map<std::string, CanonicalMatrix> read;
      const std::string key = str(&c, module);
      if (!read.contains(key)) read[key] = must(must(opened.linear({module})).expert(0));
      std::vector<double> row(read[key].k);
      dequantize_row(read[key], n, row.data());
      return row[k];
    };
    for (int64_t e = 0; e < 4; ++e) expect_values(weights, e, stored);
  }
}

TEST(GptqDynamic, NamesModuleWithoutCommonScheme) {
  const std::string down = SyntheticCheckpoint::expert(0, 2, "down_proj");
  const auto plain = [](SyntheticCheckpoint checkpoint, const std::string& module) {
    for (const char* part : {".qweight", ".qzeros", ".scales", ".g_idx"})
      checkpoint.remove(module + part);
    return with_floats(checkpoint, module, {32, 16});
  };
  auto checkpoint = plain(SyntheticCheckpoint::gptq(), down);
  expect_bad(checkpoint.experts(), {"tensor '" + down + ".weight'",
                                    "needs the scheme of expert 0, int4-w4a16-g8 [32, 16], "
                                    "because one kernel multiplies all experts; it is bf16"});
  for (int e : {0, 1, 3})
    checkpoint = plain(checkpoint, SyntheticCheckpoint::expert(0, e, "down_proj"));
  EXPECT_EQ(must(checkpoint.experts()).spec.scheme_name(), "int4-w4a16-g8 + bf16");
}

TEST(GptqDynamic, NamesInvalidRule) {
  const WrongConfig bad[] = {
      {{{"a.*", {{"bits", 9}}}}, "dynamic.a.*.bits: needs a whole number from 2 to 8; it is 9"},
      {{{"a", {{"group_size", 0}}}}, "dynamic.a.group_size: needs -1 or a positive size"},
      {{{"a", {{"sym", 1}}}}, "dynamic.a.sym: needs true or false; it is 1"},
      {{{"+:a", false}}, "dynamic.+:a: needs an object; it is false"},
      {{{"+:a", nullptr}}, "dynamic.+:a: needs an object; it is null"},
      {json::array({"a"}), "dynamic: needs an object; it is [\"a\"]"},
  };
  const auto checkpoint = SyntheticCheckpoint::gptq();
  for (const auto& [dynamic, line] : bad) {
    expect_bad_config(checkpoint, {{{"dynamic", dynamic}}, line});
  }
  expect_bad(with_o_proj({}, {{"-:(", json::object()}}).open(),
             {"/config.json: module pattern 're:(': needs a regular expression"});
  const WrongConfig unsupported[] = {
      {{{"a", {{"bits", 3}}}}, "dynamic.a.bits: needs 4 or 8; it is 3"},
      {{{"a", {{"format", "gptq_v2"}}}},
       "dynamic.a.format: needs to be absent here, because it is the same for all modules; it is "
       "\"gptq_v2\""},
      {{{"a", {{"adapter", {{"rank", 4}}}}}}, "dynamic.a.adapter: needs to be absent here"},
  };
  for (const auto& [dynamic, line] : unsupported) {
    expect_unsupported_config(checkpoint, {{{"dynamic", dynamic}}, line});
  }
}

TEST(GptqDynamic, EmptyRulesChangeNothing) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  for (const json& dynamic : {json(nullptr), json::object()}) {
    checkpoint.quantization()["dynamic"] = dynamic;
    EXPECT_TRUE(checkpoint.experts().ok());
  }
}

TEST(GptqWithoutGroupIndex, GroupsFollowColumnOrder) {
  for (const bool symmetric : {true, false}) {
    auto checkpoint = SyntheticCheckpoint::gptq({.symmetric = symmetric});
    const DescribedWeights with = must(checkpoint.experts());
    for (int e = 0; e < 4; ++e) {
      for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
        checkpoint.remove(SyntheticCheckpoint::expert(0, e, part) + ".g_idx");
      }
    }
    const DescribedWeights without = must(checkpoint.experts());
    EXPECT_FALSE(without.spec.group_index);
    std::vector<double> a(32), b(32);
    for (int64_t r = 0; r < 32; ++r) {
      dequantize_row(must(with.w13.expert(2)), r, a.data());
      dequantize_row(must(without.w13.expert(2)), r, b.data());
      EXPECT_EQ(a, b);
    }
  }
}

TEST(GptqWithoutGroupIndex, IsRejectedWithDescAct) {
  for (const int64_t group : {8, -1}) {
    expect_missing(SyntheticCheckpoint::gptq({.group_size = group, .desc_act = true}),
                   kUp + ".g_idx");
  }
}

TEST(GptqFile, ReadsActOrder) {
  expect_stored("qwen3moe-gptq-int4-g32-act", "gptq", "int4-w4a16-g32");
}
TEST(GptqFile, ReadsZeroPoints) {
  expect_stored("qwen3moe-gptq-int4-g64-asym", "gptq", "int4-w4a16-g64-asym");
}

}  // namespace
}  // namespace moracle::testing::gptq_dynamic_test
