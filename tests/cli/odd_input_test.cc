// Tests unusual input: every verb must fail at once with one short line and an exit code.
#include <sys/stat.h>

#include <string>
#include <vector>

#include "run_command.h"

namespace moracle::odd_input_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_one_line;
using testing::expect_refused;
using ::testing::HasSubstr;
using testing::Ran;
using testing::run_command;
using testing::run_shell;
using testing::SyntheticCheckpoint;
using testing::TemporaryFolder;

TEST(OddNumbers, RejectedByEveryOption) {
  const std::vector<std::vector<std::string>> verbs = {
      {"run", "model", "-p", "a", "-n"},
      {"run", "model", "-p", "a", "--threads"},
      {"run", "model", "-p", "a", "--seed"},
      {"perplexity", "model", "--text", "t", "--max-tokens"},
      {"explain", "model", "--num-tokens"},
      {"explain", "model", "--lora-rank"},
      {"explain", "model", "--ep-size"},
      {"check", "--threads"},
      {"tune", "model", "--seconds"},
      {"tune", "model", "--threads"},
      {"bench", "--seconds"},
      {"bench", "--layers"},
      {"bench", "--context"},
      {"bench", "--probe-megabytes"}};
  for (std::vector<std::string> verb : verbs) {
    const std::string option = verb.back() == "-n" ? "--max-tokens" : verb.back();
    for (const char* odd :
         {"nan", "inf", "-1", "18446744073709551616", "1e999", "", "0x10", "1 "}) {
      std::vector<std::string> arguments = verb;
      // "--option=" counts as an option without a value.
      if (std::string(odd).empty())
        arguments.insert(arguments.end(), {""});
      else
        arguments.back() += std::string(verb.back() == "-n" ? "" : "=") + odd;
      expect_refused(arguments, {option});
    }
  }
}

TEST(OddNumbers, RejectedWhenTooLargeForOptionsWithoutRange) {
  for (const char* odd : {"nan", "9223372036854775808", "1.5"}) {
    expect_refused({"check", "--tokens", odd}, {"--tokens: needs a whole number", odd});
    expect_refused({"bench", "--batch", std::string("1,") + odd}, {"--batch: needs", odd});
    expect_refused({"bench", "--prompt", odd}, {"--prompt: needs", odd});
    expect_refused({"perplexity", "m", "--text", "t", "--window", odd}, {"--window: needs", odd});
  }
}

TEST(OddText, EmptyDiffersFromAbsent) {
  for (const char* option : {"--lora", "--cache", "--quantization", "--backend", "--device"})
    expect_refused({"run", "model", "-p", "a", option, ""}, {option, "needs a value; it is empty"});
  for (const char* option : {"--load", "--anchors", "--model-shape", "--shape"})
    expect_refused({"bench", option, ""}, {option, "needs a value; it is empty"});
  expect_refused({"quantize", "model", "--scheme", "mxfp8", "-o", ""}, {"--output", "empty"});
}

TEST(OddText, ShownPrintableAndShortInMessages) {
  const std::string escape = "a\x1b[2J\nb\xff", flood(100'000, 'x');
  for (const std::string& odd : {escape, flood}) {
    const std::vector<std::vector<std::string>> commands = {
        {odd},
        {"run", odd, "-p", "a"},
        {"run", "model", "-p", "a", odd},
        {"run", "model", "-p", "a", "-n", odd},
        {"check", "--backend", odd},
        {"check", "--scheme", odd},
        {"check", "--shape", odd},
        {"check", "--spread", odd},
        {"check", "--variant", odd},
        {"check", "--device", odd},
        {"check", "--without", odd},
        {"explain", "model", "--machine", odd},
        {"bench", "--shape", odd},
        {"bench", "--scheme", odd},
        {"bench", "--tokens", odd},
        {"bench", "--backend", odd},
        {"bench", "--activations", odd},
        {"bench", "--without", odd},
        {"bench", "--model-shape", odd},
        {"bench", "--anchors", odd},
        {"quantize", odd, "--scheme", "mxfp8", "-o", "to"},
        {"inspect", odd}};
    for (const auto& arguments : commands) expect_refused(arguments, {});
  }
}

TEST(OddNames, TensorNamesAreShownPrintable) {
  const TemporaryFolder folder;
  SyntheticCheckpoint odd = SyntheticCheckpoint::plain();
  odd.config["architectures"] = {"No\x1b[2JSuch\nModel"};
  ASSERT_TRUE(odd.write(folder.path()).ok());
  const Ran ran = run_command({"inspect", folder.path()});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out.find('\x1b'), ran.out.npos);
  EXPECT_THAT(ran.out, HasSubstr("No\\x1b[2JSuch\\nModel"));
}

// Replaces each file that the command reads by a folder, a pipe without a writer, an endless device
// or a dangling link.
class OddFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::mkfifo((folder_.path() + "/pipe").c_str(), 0600), 0);
    fs::create_directory(folder_.path() + "/folder");
    fs::create_symlink("/dev/zero", folder_.path() + "/endless");
    ASSERT_TRUE(SyntheticCheckpoint::plain().write(model_).ok());
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  const TemporaryFolder folder_;
  const TemporaryFolder checkpoint_;
  const std::string model_ = checkpoint_.path();
};

TEST_F(OddFiles, RejectedWithoutWaiting) {
  for (const std::string name : {"pipe", "folder", "endless"}) {
    const std::string odd = path(name);
    expect_refused({"explain", model_, "--cache", odd}, {odd, "regular file"});
    expect_refused({"tune", model_, "--cache", odd}, {odd, "regular file"});
    expect_refused({"bench", "--anchors", odd}, {odd, "--anchors", "regular file"});
    for (const char* file : {"config.json", "tokenizer.json"}) {
      const std::string place = model_ + "/" + file, kept = model_ + "/kept";
      if (fs::exists(place)) fs::rename(place, kept);
      fs::create_symlink(odd, place);
      expect_refused({"run", model_, "-p", "a"}, {file, "regular file"});
      fs::remove(place);
      if (fs::exists(kept)) fs::rename(kept, place);
    }
  }
}

TEST_F(OddFiles, RejectedAsChatTemplateWithoutWaiting) {
  const std::string small = testing::small_model();
  if (small.empty()) GTEST_SKIP() << "the small model is not there";
  const TemporaryFolder copy;
  for (const auto& entry : fs::directory_iterator(small))
    fs::create_symlink(entry.path(), copy.path() + "/" + entry.path().filename().string());
  for (const char* file : {"/chat_template.jinja", "/tokenizer_config.json"}) {
    for (const std::string name : {"pipe", "folder", "endless"}) {
      fs::remove(copy.path() + file);
      fs::create_symlink(path(name), copy.path() + file);
      expect_refused({"run", copy.path(), "--chat", "-p", "a", "-n", "1"}, {file, "regular file"});
    }
    fs::remove(copy.path() + file);
  }
}

TEST_F(OddFiles, RejectsDeeplyNestedJson) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const std::string file = folder_.write("deep", deep);
  expect_refused({"explain", model_, "--cache", file}, {file, "moracle tune"});
  expect_refused({"bench", "--anchors", file}, {file, "at most 64 levels"});
  fs::copy(file, model_ + "/tokenizer.json");
  expect_refused({"run", model_, "-p", "a"}, {"tokenizer.json", "at most 64 levels"});
}

TEST(Prompts, ReadFromStandardInput) {
  const std::string model = testing::small_model();
  if (model.empty()) GTEST_SKIP() << "the small model is not there";
  const TemporaryFolder folder;
  const std::string file = folder.write("prompt", "one two");
  const std::string rest = " --json -n 1 ", first = "\"$0\" run '" + model + "'" + rest;
  const auto ids = [](const Ran& ran) {
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.out.substr(0, ran.out.find("\"ids\""));
  };
  const std::string named = ids(run_shell(first + "--prompt-file '" + file + "'"));
  EXPECT_EQ(ids(run_shell(first + "--prompt-file /dev/stdin < '" + file + "'")), named);
  EXPECT_EQ(ids(run_shell("cat '" + file + "' | " + first + "--prompt-file /dev/stdin")), named);
  EXPECT_EQ(ids(run_shell("cat '" + file + "' | " + first + "--prompt-file -")), named);
  EXPECT_EQ(ids(run_shell(first + "--prompt-file /dev/fd/5 5< '" + file + "'")), named);
  EXPECT_EQ(run_shell(first + "--prompt-file - <&-").code, 2);
}

TEST(StandardOutput, FullOrClosedOutputFailsWithOneLine) {
  const std::string model = testing::small_model();
  for (const char* to : {"> /dev/full", ">&-"}) {
    const std::string reason =
        "standard output: needs to accept the whole output; it is full or closed";
    expect_one_line(run_shell(std::string("\"$0\" machines --json ") + to), {reason}, 1);
    expect_one_line(run_shell(std::string("\"$0\" machines ") + to), {reason}, 1);
    if (model.empty()) continue;
    const Ran run = run_shell("\"$0\" run '" + model + "' -p a --ignore-eos " + to);
    EXPECT_EQ(run.code, 1);
    EXPECT_THAT(run.err, HasSubstr("moracle: " + reason));
    EXPECT_EQ(run.err.find("stopped by"), run.err.npos) << run.err;
  }
}

// A later opened file must not receive the output.
TEST(StandardOutput, ClosedDescriptorIsNotReusedForFiles) {
  const TemporaryFolder folder;
  const std::string from = folder.path() + "/plain", to = folder.path() + "/to";
  fs::create_directory(from);
  ASSERT_TRUE(SyntheticCheckpoint::plain({.intermediate = 32, .heads = 2}).write(from).ok());
  const std::string script = "\"$0\" quantize \"$1\" --scheme mxfp8 -o \"$2\" ";
  EXPECT_EQ(run_shell(script + ">&- 2>&-", {from, to}).code, 1);
  const Ran inspected = run_command({"inspect", to});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
}

#if !defined(MORACLE_SANITIZED)  // sanitizers need address space
// Without OpenCL drivers: some terminate the process when memory is short.
TEST(Memory, OutOfMemoryFailsWithOneLine) {
  // In addition to the executable, which GPU kernels make large.
  for (const char* kilobytes : {"40000", "90000", "240000"}) {
    const Ran ran =
        run_shell(std::string("ulimit -v $(($(stat -c %s \"$0\") / 1024 + ") + kilobytes +
                  ")); OCL_ICD_VENDORS=/nonexistent \"$0\" bench --shape 64x2048x2048x2 "
                  "--tokens 4096 --seconds 0.01 "
                  "--threads 1");
    expect_one_line(ran, {}, 1);
  }
}

TEST(Memory, ThreadStartFailureFailsWithOneLine) {
  const Ran ran =
      run_shell("ulimit -v 1000000; OCL_ICD_VENDORS=/nonexistent \"$0\" check --threads 4096");
  expect_one_line(ran, {}, 1);
}
#endif

}  // namespace
}  // namespace moracle::odd_input_test
