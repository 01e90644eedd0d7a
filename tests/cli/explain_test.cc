// Tests `explain`: the same options, device and plan as `run`.
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/producers/fp4_synthetic.h"
#include "paths.h"
#include "run_command.h"

namespace moracle::explain_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::expect_refused;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Ran;
using testing::run_command;
using testing::SyntheticCheckpoint;
using testing::TemporaryFolder;
using Words = std::vector<std::string>;

Json answer(Words arguments, const Words& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.push_back("--json");
  const Ran ran = run_command(arguments);
  EXPECT_EQ(ran.code, 0) << ran.err;
  return Json::parse(ran.out, nullptr, false);
}

/// Returns {part, layers, scheme, plan} of every choice, sorted. Replaces figures in reasons by
/// "#", because each process measures instruction rates itself.
std::set<std::string> choices_of(Json list) {
  static const std::regex kFigures("[0-9.]+ (GFLOP|TFLOP)|avx512 [0-9.]+");
  for (Json& choice : list) {
    for (Json& matrix : choice["plan"]["matrices"]) {
      if (!matrix["reason"].is_string()) continue;
      matrix["reason"] = std::regex_replace(matrix["reason"].get<std::string>(), kFigures, "#");
    }
  }
  std::set<std::string> choices;
  for (const Json& choice : list) {
    choices.insert(Json{{"part", choice["part"]},
                        {"layers", choice["layers"]},
                        {"scheme", choice["scheme"]},
                        {"plan", choice["plan"]}}
                       .dump());
  }
  return choices;
}

void expect_same_answers(const std::string& model, const Words& options) {
  std::string line = model;
  for (const std::string& option : options) line += " " + option;
  SCOPED_TRACE(line);
  const Json explained = answer({"explain", model}, options);
  const Json dry = answer({"run", model, "--dry-run"}, options);
  ASSERT_TRUE(explained.is_object() && dry.is_object());
  Json all = explained["groups"];
  for (const Json& other : explained["others"]) all.push_back(other);
  EXPECT_EQ(choices_of(all), choices_of(dry["choices"]));
  EXPECT_TRUE(explained["not_runnable"].is_null());
}

TEST(ExplainCommand, MatchesDryRunWithEveryOption) {
  const TemporaryFolder folder;
  ASSERT_TRUE(SyntheticCheckpoint::plain().write(folder.path()).ok());
  const std::string cache = folder.path() + "/tuning.json";
  const Words cases[] = {
      {},
      {"--device", "cpu"},
      {"--threads", "1", "--cache", cache},
      {"--deterministic"},
      {"--activations", "bf16"},
      {"--quantization", "int8-per-channel"},
      {"--quantization", "int8-per-channel", "--activations", "int8"},
      {"--kv-cache", "bf16", "--no-graphs", "--pin"},
      {"--kv-cache", "int8"},
      {"--backend", "reference"},
      {"--backend", "lm_head=reference,*.o_proj=cpu,*.mlp.experts=cpu"},
      {"--backend", "*.q_proj=reference,*.k_proj=reference,*.v_proj=reference"},
      {"--backend", "model.layers.0.*=reference"},
  };
  for (const Words& options : cases) expect_same_answers(folder.path(), options);
  for (const char* machine : {"x86-64", "xeon-amx", "h200", "mi300x", "pocl"}) {
    expect_same_answers(folder.path(), {"--machine", machine});
    expect_same_answers(folder.path(), {"--machine", machine, "--device", "cpu"});
  }
}

TEST(ExplainCommand, MatchesDryRunForEveryCheckpoint) {
  if (!std::filesystem::exists(testing::checkpoints_dir()))
    GTEST_SKIP() << "there are no checkpoints beside the clone";
  for (const auto& entry : std::filesystem::directory_iterator(testing::checkpoints_dir())) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    expect_same_answers(entry.path().string(), {});
#if !defined(MORACLE_SANITIZED)
    expect_same_answers(entry.path().string(), {"--machine", "h200"});
#endif
  }
}

// Every build shows a CUDA build's choice.
TEST(ExplainCommand, ChoosesForGpuOfKnownMachine) {
  const TemporaryFolder folder;
  ASSERT_TRUE(SyntheticCheckpoint::plain().write(folder.path()).ok());
  const Json json = answer({"explain", folder.path()}, {"--machine", "h200"});
  EXPECT_EQ(json["device"], "cuda:0");
  ASSERT_EQ(json["groups"].size(), 1u);
  EXPECT_EQ(json["groups"][0]["chosen"], "cuda-sm90");
  const Ran ran = run_command({"explain", folder.path(), "--machine", "h200"});
  EXPECT_THAT(ran.out, HasSubstr("machine h200, device cuda:0"));
  const bool built = json["groups"][0]["plan"]["in_this_build"];
  EXPECT_THAT(ran.out, HasSubstr(built ? " yes  first accepted: Hopper"
                                       : " yes  first accepted, needs a build with cuda: Hopper"));
  EXPECT_EQ(answer({"explain", folder.path()}, {"--machine", "mi300x"})["device"], "opencl:0");
  EXPECT_EQ(answer({"explain", folder.path()}, {})["device"], "cpu");
}

TEST(ExplainCommand, ShowsResidencyOfFourBitWeights) {
  const std::string model = testing::small_model();
  const Words h200 = {"--machine", "h200", "--activations", "fp8"};
  const auto explained = [&](const char* weights) {
    Words options = h200;
    options.insert(options.end(), {"--weights", weights});
    return answer({"explain", model}, options);
  };
  const Json packed = explained("packed"), folded = explained("folded"), chosen = explained("auto");
  EXPECT_EQ(packed["residency"]["chosen"], "packed");
  EXPECT_EQ(folded["residency"]["chosen"], "folded");
  EXPECT_EQ(chosen["residency"]["chosen"], "folded");
  EXPECT_EQ(packed["groups"][0]["scheme"], "int4-w4afp8-g128");
  EXPECT_EQ(folded["groups"][0]["scheme"], "fp8-w8a8-g128-token");
  for (const Json& json : {packed, folded, chosen}) {
    const Json& residency = json["residency"];
    EXPECT_EQ(residency["packed_bytes"], packed["residency"]["packed_bytes"]);
    EXPECT_GT(residency["folded_bytes"], residency["packed_bytes"]);
    EXPECT_EQ(residency["schemes"], "int4-w4afp8-g128 as fp8-w8a8-g128-token");
  }
  Words words = {"explain", model, "--weights", "folded"};
  words.insert(words.end(), h200.begin(), h200.end());
  EXPECT_THAT(run_command(words).out, HasSubstr("weights folded, packed "));
  expect_same_answers(model, {"--machine", "h200", "--activations", "fp8", "--weights", "folded"});
  const auto refuse = [&](const Words& options, std::initializer_list<std::string> parts) {
    for (const Words& verb : {Words{"explain", model}, Words{"run", model, "--dry-run"}}) {
      Words all = verb;
      all.insert(all.end(), options.begin(), options.end());
      expect_refused(all, parts);
    }
  };
  refuse({"--weights", "folded", "--activations", "fp8"},
         {"--weights: needs an NVIDIA GPU", "the device is cpu"});
  refuse({"--weights", "folded", "--machine", "h200"},
         {"--weights", "fp8 activations for folded (--activations)"});
  refuse({"--weights", "fp8"}, {"packed, folded or auto", "'fp8'"});
}

/// Checks the experts' choice on both known machines with Intel GPUs: the row, its layout, and the
/// rule that rejects another row.
void expect_on_intel_gpus(const std::string& model, Words options, const std::string& chosen,
                          const std::string& layout, const std::string& refusing,
                          const std::string& rule) {
  for (const char* machine : {"arc-b580", "max-1550"}) {
    SCOPED_TRACE(model + " on " + machine);
    Words all = options;
    all.insert(all.end(), {"--machine", machine});
    const Json json = answer({"explain", model}, all);
    EXPECT_EQ(json["device"], "opencl:0");
    ASSERT_EQ(json["groups"].size(), 1u);
    const Json& group = json["groups"][0];
    EXPECT_EQ(group["chosen"], chosen);
    EXPECT_EQ(group["plan"]["layout"], layout);
    for (const Json& row : group["considered"]) {
      // Every rejected row has reasons, other devices' rows too.
      EXPECT_EQ(row["accepted"].get<bool>(), row["reasons"].empty()) << row;
      if (row["backend"] != refusing) continue;
      ASSERT_FALSE(row["reasons"].empty());
      EXPECT_EQ(row["reasons"][0]["rule"], rule);
    }
  }
}

TEST(ExplainCommand, BeginsWithChoiceAndFoldsBackendsOfOtherDevices) {
  const TemporaryFolder folder;
  ASSERT_TRUE(SyntheticCheckpoint::plain().write(folder.path()).ok());
  const Words words = {"explain", folder.path(), "--machine", "xeon-avx512"};
  const std::string text = run_command(words).out;
  EXPECT_TRUE(text.starts_with("layer")) << text;
  const std::string first = text.substr(0, text.find('\n'));
  EXPECT_THAT(first, HasSubstr(" → cpu-avx512, first accepted · machine xeon-avx512, device cpu"));
  EXPECT_THAT(text, HasSubstr("not for device cpu: "));
  EXPECT_THAT(text, HasSubstr("--all shows every reason"));
  EXPECT_THAT(text, Not(HasSubstr("cuda-sm90")));
  Words all = words;
  all.push_back("--all");
  const std::string every = run_command(all).out;
  EXPECT_THAT(every, HasSubstr("cuda-sm90"));
  EXPECT_THAT(every, Not(HasSubstr("--all shows every reason")));
  const Json json = answer(words, {});
  EXPECT_THAT(json["groups"][0]["considered"].dump(), HasSubstr("cuda-sm90"));
}

// Uses known machines: no such GPU was available for tests.
TEST(ExplainCommand, ChoosesMatrixEnginesOfIntelGpusForOnlineFp8) {
  const TemporaryFolder folder;
  ASSERT_TRUE(SyntheticCheckpoint::plain().write(folder.path()).ok());
  for (const char* scheme : {"fp8-per-tensor", "fp8-per-channel", "fp8-per-block", "mxfp8"}) {
    for (const Words& options : {Words{}, Words{"--activations", "16bit"}}) {
      Words all = {"--quantization", scheme};
      all.insert(all.end(), options.begin(), options.end());
      expect_on_intel_gpus(folder.path(), all, "opencl-matrix-wide", "columns16", "opencl-matrix",
                           "weights");
    }
  }
}

TEST(ExplainCommand, ChoosesMatrixEnginesOfIntelGpusForInt4) {
  Words models = {testing::small_model()};
  for (const char* name : {"qwen3moe-gptq-int4-g64-asym", "qwen3moe-gptq-int4-g32-act",
                           "qwen3moe-awq-int4-g128", "qwen3moe-ct-w4a16-g128"})
    models.push_back(testing::checkpoints_dir() + "/" + name);
  int checked = 0;
  for (const std::string& model : models) {
    if (!std::filesystem::exists(model + "/config.json")) continue;
    ++checked;
    expect_on_intel_gpus(model, {}, "opencl-matrix", "rows16", "opencl-matrix-wide", "weights");
  }
  if (checked == 0) GTEST_SKIP() << "there are no checkpoints in int4";
}

// Modules stacked in one matrix need one backend; the error names them.
TEST(ExplainCommand, RejectsPatternThatSplitsStackedModules) {
  const TemporaryFolder folder;
  ASSERT_TRUE(SyntheticCheckpoint::plain().write(folder.path()).ok());
  for (const Words& verb :
       {Words{"explain", folder.path()}, Words{"run", folder.path(), "--dry-run"}}) {
    const auto refuse = [&](const std::string& map, std::initializer_list<std::string> parts) {
      Words arguments = verb;
      arguments.insert(arguments.end(), {"--backend", map});
      expect_refused(arguments, parts);
    };
    refuse("*.q_proj=reference",
           {"--backend: needs one backend for 'model.layers.0.self_attn.q_proj'",
            "'model.layers.0.self_attn.k_proj'", "'model.layers.0.self_attn.v_proj'"});
    refuse("*.up_proj=reference", {"one backend for all of 'model.layers.0.mlp.experts'"});
    refuse("*.q_proj.weight=reference", {"'*.q_proj.weight' matches no module"});
  }
}

// A checkpoint with 4-bit activations runs with more bits, and every verb reports it.
TEST(ExplainCommand, NamesUnusedActivationQuantization) {
  const TemporaryFolder folder;
  const std::vector<std::pair<testing::fp4::Form, std::string>> files = {
      {{"NVFP4"}, "quant_algo NVFP4"},
      {{"nvfp4-pack-quantized", true}, "config_groups.group_0.input_activations"},
      {{"W4A16_NVFP4"}, ""},
      {{"nvfp4-pack-quantized"}, ""}};
  for (const auto& [form, key] : files) {
    SCOPED_TRACE(form.format);
    ASSERT_TRUE(testing::fp4::checkpoint_of(form).write(folder.path()).ok());
    for (const Words& verb : {Words{"inspect"}, Words{"explain"}, Words{"run", "--dry-run"}}) {
      Words arguments = verb;
      arguments.insert(arguments.begin() + 1, folder.path());
      const Json texts = answer(arguments, {})["not_used"];
      ASSERT_EQ(texts.size(), key.empty() ? 0u : 1u) << verb[0];
      const Ran ran = run_command(arguments);
      if (key.empty()) {
        EXPECT_THAT(ran.out, Not(HasSubstr("4-bit activations")));
        continue;
      }
      const auto text = texts[0].get<std::string>();
      EXPECT_THAT(text, HasSubstr("4-bit activations (" + key));
      EXPECT_THAT(ran.out, HasSubstr("not used: " + text + "\n")) << verb[0];
    }
  }
}

TEST(ExplainCommand, GivesReasonWhenModelCannotRun) {
  const TemporaryFolder folder;
  SyntheticCheckpoint unknown = SyntheticCheckpoint::plain();
  unknown.config["architectures"] = {"NoSuchModel"};
  ASSERT_TRUE(unknown.write(folder.path()).ok());
  const Json inspected = answer({"inspect", folder.path()}, {});
  const Json explained = answer({"explain", folder.path()}, {});
  EXPECT_FALSE(explained["not_runnable"].is_null());
  EXPECT_EQ(explained["not_runnable"], inspected["not_runnable"]);
  EXPECT_EQ(explained["groups"].size(), 1u);
  EXPECT_EQ(explained["others"].size(), 0u);
  const Ran ran = run_command({"explain", folder.path()});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("only the experts of this model can be used: "));
  EXPECT_THAT(ran.out, HasSubstr("'NoSuchModel'"));
  ASSERT_TRUE(SyntheticCheckpoint::plain().write(folder.path()).ok());
  EXPECT_THAT(run_command({"explain", folder.path()}).out, Not(HasSubstr("can be used")));
}

}  // namespace
}  // namespace moracle::explain_test
