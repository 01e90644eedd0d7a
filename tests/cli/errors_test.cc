// Tests the command's errors: exit code 2 for wrong usage or input, 1 for failed work, and one line
// with need and fact.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/to_gguf.h"
#include "run_command.h"

namespace moracle::errors_test {
namespace {

using testing::expect_refused;
using ::testing::HasSubstr;
using testing::Ran;
using testing::run_command;
using testing::SyntheticCheckpoint;
using testing::TemporaryFolder;

TEST(CommandLine, HelpAndVersionSucceed) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"},
                                                    {"-h"},
                                                    {"run", "--help"},
                                                    {"serve", "--help"},
                                                    {"perplexity", "--help"},
                                                    {"quantize", "--help"},
                                                    {"inspect", "--help"},
                                                    {"explain", "--help"},
                                                    {"machines", "--help"},
                                                    {"check", "--help"}}) {
    const Ran ran = run_command(arguments);
    EXPECT_EQ(ran.code, 0);
    EXPECT_EQ(ran.err, "");
    EXPECT_THAT(ran.out, HasSubstr("Usage: moracle"));
  }
  EXPECT_THAT(run_command({"--version"}).out, ::testing::StartsWith("moracle "));
}

TEST(CommandLine, WrongUsageNamesErrorAndHelp) {
  expect_refused({}, {"subcommand is required", "moracle --help"});
  expect_refused({"nosuchverb"}, {"moracle --help"});
  expect_refused({"--nosuchoption"}, {"moracle --help"});
  expect_refused({"run"}, {"MODEL is required"});
  expect_refused({"inspect"}, {"MODEL is required"});
  expect_refused({"explain"}, {"MODEL is required"});
  expect_refused({"perplexity", "model"}, {"--text is required"});
  expect_refused({"machines", "extra"}, {"not expected: extra"});
  expect_refused({"run", "model"}, {"-p,--prompt: needs a prompt, or --prompt-file"});
  expect_refused({"run", "model", "-p", "a", "--prompt-file", "b"},
                 {"-p,--prompt", "at most 1 options"});
  expect_refused({"run", "model", "-p", "a", "--tools", "b"}, {"--tools requires --chat"});
  expect_refused({"run", "model", "-p", "a", "--nosuchoption"}, {"not expected: --nosuchoption"});
  expect_refused({"run", "model", "-p"}, {"--prompt"});
  expect_refused({"check", "extra"}, {"not expected: extra"});
}

TEST(CommandLine, RejectsNumberOutOfRange) {
  expect_refused({"run", "model", "-p", "a", "-n", "0"}, {"--max-tokens", "0"});
  expect_refused({"run", "model", "-p", "a", "-n", "many"}, {"--max-tokens", "many"});
  expect_refused({"run", "model", "-p", "a", "-n", "99999999999999999999"}, {"--max-tokens"});
  expect_refused({"run", "model", "-p", "a", "--threads", "-1"}, {"--threads", "-1"});
  expect_refused({"run", "model", "-p", "a", "--temperature", "warm"}, {"--temperature", "warm"});
  expect_refused({"run", "model", "-p", "a", "--seed", "x"}, {"--seed", "x"});
  expect_refused({"perplexity", "model", "--text", "t", "--max-tokens", "1"}, {"--max-tokens"});
}

TEST(CommandLine, UnknownNameListsKnownNames) {
  expect_refused({"check", "--backend", "nosuch"}, {"--backend", "reference", "'nosuch'"});
  expect_refused({"check", "--scheme", "nosuch"}, {"'nosuch'", "int4-w4a16"});
  expect_refused({"check", "--shape", "3x"}, {"--shape", "'3x'"});
  expect_refused({"check", "--tokens", "-5"}, {"needs at least one case"});
  expect_refused({"explain", "model", "--machine", "nosuch"},
                 {"--machine", "here", "h200", "'nosuch'"});
}

TEST(CommandLine, RejectsPathThatIsNotAModel) {
  const TemporaryFolder folder;
  const std::string absent = folder.path() + "/absent", text = folder.write("text", "a b c");
  for (const std::string verb : {"run", "perplexity", "inspect", "explain"}) {
    auto refused = [&](const std::string& model, std::initializer_list<std::string> parts) {
      std::vector<std::string> arguments = {verb, model, "--json"};
      if (verb == "run") arguments.insert(arguments.end(), {"-p", "a"});
      if (verb == "perplexity") arguments.insert(arguments.end(), {"--text", text});
      expect_refused(arguments, parts);
    };
    refused(absent, {absent + ": needs the folder of a checkpoint; the folder does not exist"});
    refused(text,
            {text + ": needs the folder of a checkpoint, or a GGUF file; it is another file"});
    refused(folder.path(), {folder.path() + ": needs config.json; the folder has none"});
    refused("", {"needs the folder of a checkpoint"});
  }
}

TEST(CommandLine, NamesModelsOfFolderWithSeveralGgufFiles) {
  const TemporaryFolder folder;
  for (const char* name : {"a.gguf", "b.gguf"})
    testing::to_gguf(SyntheticCheckpoint::plain()).write(folder.path() + "/" + name);
  const std::string path = folder.path();
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"run", path, "-p", "a"}, {"inspect", path}}) {
    expect_refused(arguments, {folder.path() + ": needs config.json, or one model in GGUF; give "
                                               "the path of the file; it has a.gguf, b.gguf"});
  }
}

TEST(CommandLine, RejectsBrokenModel) {
  TemporaryFolder folder;
  auto broken = SyntheticCheckpoint::gptq();
  const std::string scales = SyntheticCheckpoint::expert(1, 2, "up_proj.scales");
  broken.remove(scales);
  ASSERT_TRUE(broken.write(folder.path()).ok());
  expect_refused({"inspect", folder.path()},
                 {"/model.safetensors: tensor '" + scales + "'", "it is missing"});
  expect_refused({"explain", folder.path(), "--json"},
                 {"tensor '" + scales + "'", "it is missing"});
  folder.write("config.json", "{\"architectures\": [");
  expect_refused({"inspect", folder.path()},
                 {"/config.json: line 1, column 20: needs valid JSON; found a syntax error"});
  broken.config["architectures"] = {"NoSuchModel"};
  ASSERT_TRUE(broken.write(folder.path()).ok());
  const std::string why = "/config.json: architectures: needs one of AfmoeForCausalLM, ";
  const std::string is =
      "Step3p7ForConditionalGeneration, Step3p7FlashForCausalLM; it is 'NoSuchModel'; ";
  expect_refused({"run", folder.path(), "--json", "--dry-run"},
                 {why, is, "tensor '" + scales + "'", "it is missing"});
  // inspect and explain still show complete experts.
  SyntheticCheckpoint unknown = SyntheticCheckpoint::plain();
  unknown.config["architectures"] = {"NoSuchModel"};
  ASSERT_TRUE(unknown.write(folder.path()).ok());
  const Ran ran = run_command({"inspect", folder.path()});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("only the experts of this model can be used: "));
  EXPECT_THAT(ran.out, HasSubstr(why));
  // The error names the missing part and how to add it.
  for (const std::string& part :
       {is,
        std::string(
            "can be used: 2 layers of 4 experts, top-2, hidden size 32, intermediate size 16, "
            "bf16, routing unknown"),
        std::string("a file in src/models/families (see CONTRIBUTING.md)")})
    EXPECT_THAT(ran.out, HasSubstr(part));
}

TEST(CommandLine, RejectsModelWithoutTokenizer) {
  const TemporaryFolder folder;
  ASSERT_TRUE(SyntheticCheckpoint::plain().write(folder.path()).ok());
  const Ran ran = run_command({"run", folder.path(), "-p", "a"});
  EXPECT_NE(ran.code, 0);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr("/tokenizer.json: needs "));
}

// These verbs work without a tokenizer, and report what `run` would reject.
TEST(CommandLine, ShowsThatTokenizerCannotBeRead) {
  const TemporaryFolder folder;
  ASSERT_TRUE(SyntheticCheckpoint::plain().write(folder.path()).ok());
  folder.write("tokenizer.json",
               R"({"model": {"type": "WordPiece"}, "decoder": {"type": "Fuse"}})");
  const std::vector<std::vector<std::string>> commands = {
      {"inspect", folder.path()}, {"explain", folder.path()}, {"run", folder.path(), "--dry-run"}};
  for (std::vector<std::string> command : commands) {
    SCOPED_TRACE(command[0]);
    const Ran text = run_command(command);
    EXPECT_EQ(text.code, 0) << text.err;
    const std::string need = "/tokenizer.json: model.type: needs BPE or Unigram";
    EXPECT_THAT(text.out, HasSubstr("cannot be read: "));
    EXPECT_THAT(text.out, HasSubstr(need));
    command.emplace_back("--json");
    const Ran json = run_command(command);
    EXPECT_EQ(json.code, 0) << json.err;
    const auto tokenizer = nlohmann::json::parse(json.out)["tokenizer"];
    EXPECT_TRUE(tokenizer["num_ids"].is_null());
    EXPECT_THAT(tokenizer["error"].get<std::string>(), HasSubstr(need));
  }
}

// Errors of verbs with the bundled model.
class ModelErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    if (model_.empty()) GTEST_SKIP() << "the small model is not there";
  }
  // `moracle run MODEL --json -p a` and more.
  void refuse(const std::vector<std::string>& more,
              std::initializer_list<std::string> parts) const {
    std::vector<std::string> arguments = {"run", model_, "--json", "-p", "a", "-n", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_refused(arguments, parts);
  }
  void refuse_prompt(const std::string& prompt, std::initializer_list<std::string> parts) const {
    expect_refused({"run", model_, "--json", "-p", prompt}, parts);
    expect_refused({"run", model_, "--json", "--prompt-file", folder_.write("prompt", prompt)},
                   parts);
  }

  const std::string model_ = testing::small_model();
  const TemporaryFolder folder_;
};

TEST_F(ModelErrors, UnknownBackendListsKnownBackends) {
  refuse({"--backend", "nosuch"},
         {"--backend: needs auto or one of ", "cpu", "reference", "'nosuch'"});
  const Ran ran = run_command({"explain", model_, "--backend", "nosuch"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("moracle: --backend: needs auto or one of "));
}

TEST_F(ModelErrors, RejectsUnknownDevice) {
  for (const char* name : {"nosuch", "cpu:1", "cuda:", "cuda:x", "cuda:-1", "opencl0"}) {
    refuse({"--device", name}, {"--device: needs cpu, cuda[:n] or opencl[:n]", name});
  }
#ifdef MORACLE_WITH_OPENCL
  refuse({"--device", "opencl:4096"}, {"device 'opencl:4096': needs ", "or device cpu"});
#else
  refuse({"--device", "opencl"}, {"device 'opencl:0': needs a device of this build", "cpu"});
#endif
}

TEST_F(ModelErrors, RejectsPatternWithoutMatch) {
  refuse({"--backend", "model.layers.7.*=cpu"},
         {"--backend", "'model.layers.7.*' matches no module"});
}

TEST_F(ModelErrors, RejectsMachineWithoutDryRun) {
  refuse({"--machine", "h200"}, {"--machine requires --dry-run"});
}

// The table has the reasons, and the error does not repeat them.
TEST_F(ModelErrors, UnservedRequestGivesReasonsOfTheRequestedDevice) {
  std::vector<std::string> words = {"explain", model_, "--machine", "x86-64", "--device", "opencl"};
  const Ran ran = run_command(words);
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.out, HasSubstr("→ none: every backend rejects it"));
  EXPECT_THAT(ran.out, HasSubstr("needs an opencl device; this machine has none"));
  EXPECT_THAT(ran.out, HasSubstr("not for device opencl: 5 backends of cpu"));
  EXPECT_THAT(ran.err, HasSubstr("every backend rejects it, see the reasons above"));
  words.push_back("--all");
  EXPECT_THAT(run_command(words).out,
              HasSubstr("no   platform  needs a backend for device opencl; this "
                        "backend runs on cpu"));
}

TEST_F(ModelErrors, RejectsPromptThatIsNotUtf8) {
  refuse_prompt("a\xff", {"byte 1", "needs valid UTF-8"});
  refuse_prompt("\xc3", {"byte 0", "needs valid UTF-8"});
  refuse_prompt("\xed\xa0\x80", {"byte 0", "needs valid UTF-8"});
}

TEST_F(ModelErrors, RejectsEmptyPrompt) {
  refuse_prompt("", {"prompt: needs at least one token; it is empty"});
}

TEST_F(ModelErrors, RejectsPromptLongerThanContext) {
  std::string prompt;
  for (int i = 0; i < 3000; ++i) prompt += "word ";
  refuse_prompt(prompt, {"prompt: needs fewer tokens than the model's context of 2048; it has "});
}

TEST_F(ModelErrors, RejectsInvalidSamplingNumbers) {
  refuse({"--temperature", "-1"}, {"--temperature: needs a number of at least 0; it is -1"});
  refuse({"--temperature", "nan"}, {"--temperature: needs a number of at least 0; it is nan"});
  refuse({"--temperature", "inf"}, {"--temperature: needs a number of at least 0; it is inf"});
  refuse({"--top-p", "0"}, {"--top-p: needs a number above 0, up to 1; it is 0"});
  refuse({"--top-p", "1.5"}, {"--top-p: needs a number above 0, up to 1; it is 1.5"});
  refuse({"--min-p", "-0.5"}, {"--min-p: needs a number from 0 to 1; it is -0.5"});
  refuse({"--min-p", "nan"}, {"--min-p: needs a number from 0 to 1; it is nan"});
  refuse({"--top-k", "-1"}, {"--top-k: needs at least 0; it is -1"});
  refuse({"--top-k", "9223372036854775808"}, {"--top-k: needs a whole number"});
  refuse({"--temperature", "1e39"}, {"--temperature: needs a number of at least 0; it is inf"});
}

TEST_F(ModelErrors, RejectsEmptyOrTooLongScoringWindow) {
  const std::string text = folder_.write("text", "one two three four");
  for (const char* window : {"1", "0", "-1", "2049", "9223372036854775807"}) {
    expect_refused({"perplexity", model_, "--json", "--text", text, "--window", window},
                   {"--window: needs 2 to 2048 tokens (the model's context); it is ", window});
  }
}

TEST_F(ModelErrors, RejectsTextTooShortToScore) {
  for (const char* text : {"", "a"}) {
    expect_refused({"perplexity", model_, "--json", "--text", folder_.write("text", text)},
                   {"text: needs at least 2 tokens; it has "});
  }
  expect_refused({"perplexity", model_, "--json", "--text", folder_.write("text", "a\xff")},
                 {"needs valid UTF-8"});
}

TEST_F(ModelErrors, NamesMissingFile) {
  const std::string absent = folder_.path() + "/absent";
  expect_refused({"run", model_, "--json", "--prompt-file", absent}, {absent});
  expect_refused({"perplexity", model_, "--json", "--text", absent}, {absent});
}

TEST_F(ModelErrors, NamesFolderGivenAsText) {
  expect_refused({"run", model_, "--json", "--prompt-file", folder_.path()}, {folder_.path()});
  expect_refused({"perplexity", model_, "--json", "--text", folder_.path()}, {folder_.path()});
}

// Library errors name fields; the command prints the verb's option instead.
TEST(OptionNames, ReplaceFieldNamesInErrors) {
  const std::string model = testing::small_model();
  if (model.empty()) GTEST_SKIP() << "no model beside the clone";
  const std::vector<std::string> run = {"run", model, "-p", "a", "-n", "1"};
  auto with = [&](std::initializer_list<const char*> more) {
    std::vector<std::string> arguments = run;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  expect_refused(with({"--kv-cache", "int3"}), {"moracle: --kv-cache: needs auto, f32"});
  expect_refused(with({"--activations", "3bit"}),
                 {"moracle: --activations: needs bf16, int8, fp8 or 16bit"});
  expect_refused(with({"--weights", "fp8"}), {"moracle: --weights: needs packed, folded or auto"});
  expect_refused(with({"--device", "gpu"}),
                 {"moracle: --device: needs cpu, cuda[:n] or opencl[:n]"});
  expect_refused(with({"--backend", "nosuch"}), {"moracle: --backend: needs auto or one of"});
  expect_refused(with({"--quantization", "q4"}), {"moracle: --quantization: needs one of"});
  expect_refused({"explain", model, "--machine", "h201"}, {"moracle: --machine: needs one of"});
  expect_refused({"quantize", model, "--scheme", "q4", "-o", "to"},
                 {"moracle: --scheme: needs one of"});
  expect_refused({"quantize", model, "--scheme", "mxfp8", "-o", "to", "--format", "zip"},
                 {"moracle: --format: needs one of"});
  expect_refused({"perplexity", model, "--text", model + "/config.json", "--window", "1"},
                 {"moracle: --window: needs 2 to"});
  expect_refused({"check", "--without", "sse"}, {"moracle: --without: needs a list of"});
  expect_refused({"bench", "--model-shape", "nosuch"}, {"moracle: --model-shape: needs one of"});
}

// Shapes use the check of the library's select(): both reject the same sizes.
TEST(Shapes, AreRejectedAsByLibrary) {
  for (const char* verb : {"check", "bench"}) {
    const auto refused = [&](const char* shape, std::initializer_list<std::string> parts) {
      expect_refused({verb, "--shape", shape}, parts);
    };
    refused("8x64x32x9", {"moracle: --shape: needs top_k: 1 to 8 (num_experts)", "'8x64x32x9'"});
    refused("8x64x32x0", {"needs top_k: 1 to 8"});
    refused("0x64x32x1", {"needs num_experts: 1 to 1048576"});
    refused("8x-64x32x1", {"needs hidden_size: 1 to 1048576"});
    refused("8x64x1048577x1", {"needs intermediate_size: 1 to 1048576"});
    refused("1048576x1048576x1048576x1", {"needs num_experts: at most 4096 of 1048576 x 1048576"});
    refused("8x64x32", {"needs experts x hidden size x intermediate size x top_k"});
    refused("8x64x32x99999999999999999999", {"needs experts x hidden size"});
  }
}

}  // namespace
}  // namespace moracle::errors_test
