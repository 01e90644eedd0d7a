// Tests moracle quantize and --quantization on the command line.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "paths.h"
#include "run_command.h"

namespace moracle::quantize_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::expect_refused;
using ::testing::HasSubstr;
using testing::Ran;
using testing::run_command;
using testing::SyntheticCheckpoint;
using testing::TemporaryFolder;

class QuantizeCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(from_);
    // All K are multiples of 32.
    const auto plain = SyntheticCheckpoint::plain({.intermediate = 32, .heads = 2});
    ASSERT_TRUE(plain.write(from_).ok());
  }
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      names.push_back(entry.path().filename().string());
    return names;
  }
  const TemporaryFolder folder_;
  const std::string from_ = folder_.path() + "/plain", to_ = folder_.path() + "/to";
};

TEST_F(QuantizeCommand, WritesFolderThatInspectShowsInRequestedScheme) {
  const Ran ran =
      run_command({"quantize", from_, "--scheme", "fp8-per-block", "-o", to_, "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  const Json json = Json::parse(ran.out);
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(item.key());
  EXPECT_THAT(keys,
              ::testing::ElementsAre("folder", "format", "scheme", "files", "tensors_quantized",
                                     "tensors_left", "bytes_before", "bytes_after"));
  EXPECT_EQ(json["folder"], to_);
  EXPECT_EQ(json["scheme"], "fp8-w8a8-block128x128");
  EXPECT_EQ(json["tensors_quantized"], 2 * (4 + 4 * 3));
  EXPECT_LT(json["bytes_after"], json["bytes_before"]);
  const Ran inspected = run_command({"inspect", to_});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, HasSubstr("fp8-w8a8-block128x128"));
  EXPECT_THAT(inspected.out, HasSubstr("compressed-tensors"));
}

TEST_F(QuantizeCommand, PrintsSummary) {
  const Ran ran = run_command({"quantize", from_, "--scheme", "mxfp8", "-o", to_, "--format",
                               "modelopt", "--max-shard-size", "5kB"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("mxfp8-w8a8"));
  EXPECT_THAT(ran.out, HasSubstr("32 quantized"));
  EXPECT_TRUE(fs::exists(to_ + "/hf_quant_config.json"));
  EXPECT_TRUE(fs::exists(to_ + "/model.safetensors.index.json"));
}

TEST_F(QuantizeCommand, RejectsImpossibleRequests) {
  expect_refused({"quantize"}, {"MODEL is required"});
  expect_refused({"quantize", from_, "-o", to_}, {"--scheme is required"});
  expect_refused({"quantize", from_, "--scheme", "mxfp8"}, {"--output is required"});
  expect_refused({"quantize", from_, "--scheme", "int3", "-o", to_},
                 {"--scheme: needs one of int8-per-channel", "'int3' is unknown"});
  expect_refused(
      {"quantize", from_, "--scheme", "*.9.*=mxfp8", "-o", to_},
      {"--scheme: needs patterns that match a linear layer", "'*.9.*' matches no linear layer"});
  expect_refused({"quantize", from_, "--scheme", "lm_head=mxfp8", "-o", to_},
                 {"--scheme: ", "which is never quantized"});
  expect_refused({"quantize", from_, "--scheme", "mxfp8", "-o", folder_.path()},
                 {"needs a new or empty folder"});
  expect_refused({"quantize", from_, "--scheme", "mxfp8", "-o", to_, "--max-shard-size", "much"},
                 {"--max-shard-size"});
  for (const char* odd : {"-1", "-5GB", "0", "", "99999999999999999999", "20EB"}) {
    expect_refused({"quantize", from_, "--scheme", "mxfp8", "-o", to_, "--max-shard-size", odd},
                   {"--max-shard-size: "});
  }
  EXPECT_THAT(left(), ::testing::ElementsAre("plain"));
}

TEST_F(QuantizeCommand, WritesGgufFileThatInspectReads) {
  const std::string file = folder_.path() + "/to.gguf";
  const Ran ran = run_command({"quantize", from_, "--format", "gguf", "--scheme",
                               "*.down_proj=q4_0,q4_k", "-o", file, "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  const Json json = Json::parse(ran.out);
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(item.key());
  EXPECT_THAT(keys, ::testing::ElementsAre("file", "format", "architecture", "types", "fallbacks",
                                           "left_out", "bytes_before", "bytes_after"));
  EXPECT_EQ(json["file"], file);
  EXPECT_EQ(json["architecture"], "qwen3moe");
  EXPECT_EQ(json["bytes_after"], fs::file_size(file));
  // No K is a multiple of 256.
  ASSERT_FALSE(json["fallbacks"].empty());
  EXPECT_EQ(json["fallbacks"][0]["requested"], "q4_k");
  EXPECT_EQ(json["fallbacks"][0]["written"], "q8_0");
  const Ran inspected = run_command({"inspect", file});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, HasSubstr("q4_0"));

  const Ran shown =
      run_command({"quantize", from_, "--format", "gguf", "--scheme", "q8_0", "-o", file});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("GGUF, qwen3moe"));
  EXPECT_THAT(shown.out, HasSubstr("left out: a tokenizer, because the folder has none"));
  EXPECT_THAT(left(), ::testing::UnorderedElementsAre("plain", "to.gguf"));
}

TEST_F(QuantizeCommand, RejectsGgufRequestsThatNoFileCanHold) {
  const auto refuse = [&](const char* scheme, const std::string& file, const char* fact) {
    expect_refused({"quantize", from_, "--format", "gguf", "--scheme", scheme, "-o", file}, {fact});
  };
  const std::string file = folder_.path() + "/to.gguf";
  refuse("q5_k", file, "--scheme: needs one of q8_0, q4_0, q4_k, q6_k, mxfp4, bf16, f16, f32");
  refuse("q8_0", to_, "needs a file name that ends with .gguf");
  refuse("*.9.*=q8_0", file, "'*.9.*' decides for none");
  expect_refused({"quantize", from_, "--format", "gguf", "--scheme", "q8_0", "-o", file,
                  "--max-shard-size", "5MB"},
                 {"--max-shard-size: needs another format than gguf"});
  EXPECT_THAT(left(), ::testing::ElementsAre("plain"));
}

TEST_F(QuantizeCommand, WritesToNewNameWithoutParentPath) {
  const Ran ran = testing::run_shell("cd \"$1\" && \"$0\" quantize plain --scheme mxfp8 -o bare",
                                     {folder_.path()});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(left(), ::testing::UnorderedElementsAre("plain", "bare"));
}

TEST_F(QuantizeCommand, RejectsQuantizedSourceAndNamesItsScheme) {
  ASSERT_TRUE(SyntheticCheckpoint::gptq().write(from_).ok());
  const std::string fact =
      "needs unquantized weights for an online scheme; the file has int4-w4a16-g8";
  expect_refused({"quantize", from_, "--scheme", "mxfp8", "-o", to_}, {fact});
  expect_refused({"explain", from_, "--quantization", "mxfp8", "--json"}, {fact});
  expect_refused({"run", from_, "--dry-run", "--quantization", "mxfp8"}, {fact});
}

TEST_F(QuantizeCommand, FullDiskNamesFileAndLeavesNoFiles) {
  // Limit files to at most 8 kB: the shell's unit is 512 or 1024 bytes.
  const std::string script = std::string("ulimit -f 8; exec '") + testing::command_path() +
                             "' quantize '" + from_ + "' --scheme mxfp8 -o '" + to_ + "' 2> '" +
                             folder_.path() + "/err'";
  const int status = std::system(("sh -c \"" + script + "\"").c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(testing::content_of(folder_.path() + "/err"), HasSubstr("model.safetensors: needs "));
  fs::remove(folder_.path() + "/err");
  EXPECT_THAT(left(), ::testing::ElementsAre("plain"));
}

TEST_F(QuantizeCommand, LeavesNoFilesWhenStopped) {
  // Large enough to be stopped while writing.
  const auto large = SyntheticCheckpoint::plain(
      {.layers = 4, .experts = 16, .hidden = 1024, .intermediate = 512, .heads = 8, .vocab = 64});
  ASSERT_TRUE(large.write(from_).ok());
  for (const int signal : {SIGINT, SIGTERM}) {
    std::string command = testing::command_path();
    std::vector<std::string> arguments = {command, "quantize", from_, "--scheme",
                                          "mxfp8", "-o",       to_,   "--json"};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    ASSERT_EQ(::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    while (left().size() == 1) std::this_thread::yield();  // until the command begins to write
    ::kill(pid, signal);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFEXITED(status)) << "ended by a signal";
    EXPECT_EQ(WEXITSTATUS(status), 1);
    EXPECT_THAT(left(), ::testing::ElementsAre("plain"));
  }
}

TEST_F(QuantizeCommand, ExplainAndDryRunShowExecutedScheme) {
  const Ran explained =
      run_command({"explain", from_, "--quantization", "int8-per-channel", "--json"});
  ASSERT_EQ(explained.code, 0) << explained.err;
  EXPECT_EQ(Json::parse(explained.out)["groups"][0]["scheme"], "int8-w8a8");
  const Ran planned = run_command({"run", from_, "--dry-run", "--json", "--quantization",
                                   "*.self_attn.*=none,fp8-per-channel"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Json plan = Json::parse(planned.out);
  for (const Json& choice : plan["choices"]) {
    EXPECT_EQ(choice["scheme"], choice["part"] == "experts" ? "fp8-w8a8-channel" : "bf16")
        << choice["part"];
  }
  expect_refused({"run", from_, "--dry-run", "--quantization", "q4"},
                 {"--quantization: needs one of", "'q4' is unknown"});
}

}  // namespace
}  // namespace moracle::quantize_test
