// Tests --routing-statistics and --placement FILE on the command line.
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "run_command.h"

namespace moracle::placement_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::expect_refused;
using ::testing::HasSubstr;
using testing::run_command;
using testing::small_model;
using testing::TemporaryFolder;

TEST(PlacementCommand, StatisticsOfRunGiveBalancedPlan) {
  const std::string model = small_model();
  if (model.empty()) GTEST_SKIP() << "no model beside the clone";
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/load.json";
  const auto ran = run_command(
      {"run", model, "-p", "Once upon a time", "-n", "5", "--routing-statistics", file, "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json answer = Json::parse(ran.out), written = Json::parse(testing::content_of(file));
  // The last token never runs through the model.
  const auto tokens = static_cast<int64_t>(answer["prompt_ids"].size() + answer["ids"].size()) - 1;
  for (const Json& layer : written["layers"]) {
    const auto counts = layer["tokens"].get<std::vector<int64_t>>();
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}) % tokens, 0);
    EXPECT_GT(*std::max_element(counts.begin(), counts.end()), 0);
  }
  const auto explained =
      run_command({"explain", model, "--parallel", "ep=3", "--placement", file, "--json"});
  ASSERT_EQ(explained.code, 0) << explained.err;
  const Json parallel = Json::parse(explained.out)["parallel"];
  EXPECT_EQ(parallel["placement"], "measured load");
  const Json& load = parallel["load"];
  ASSERT_EQ(load.size(), 3u);
  EXPECT_LE(load[2]["largest_over_mean"], load[0]["largest_over_mean"]);
  EXPECT_LE(load[2]["largest_over_mean"], load[1]["largest_over_mean"]);
  EXPECT_EQ(load[2]["tokens_of_ranks"].size(), 3u);
  const auto text = run_command({"explain", model, "--parallel", "ep=3", "--placement", file});
  EXPECT_THAT(text.out, HasSubstr("largest rank of a layer over mean"));
  // Redundant experts.
  const std::vector<std::string> copied = {"explain",     model, "--parallel",          "ep=8",
                                           "--placement", file,  "--redundant-experts", "8"};
  EXPECT_THAT(run_command(copied).out, HasSubstr("copies of hot experts:\n  layer 0: expert "));
  std::vector<std::string> as_json = copied;
  as_json.push_back("--json");
  const Json with = Json::parse(run_command(as_json).out)["parallel"];
  ASSERT_EQ(with["load"].size(), 4u);
  EXPECT_LT(with["load"][3]["largest_over_mean"], with["load"][2]["largest_over_mean"]);
  size_t held = 0;
  for (const Json& experts : with["map"][0]["experts_of_ranks"]) held += experts.size();
  EXPECT_GT(held, written["layers"][0]["num_experts"].get<size_t>());
  // Other verbs with --routing-statistics.
  const std::string book = folder.path() + "/book.txt", second = folder.path() + "/second.json";
  std::ofstream(book) << "Once upon a time there was a little girl.";
  ASSERT_EQ(run_command({"perplexity", model, "--text", book, "--routing-statistics", second}).code,
            0);
  EXPECT_EQ(Json::parse(testing::content_of(second))["layers"].size(), written["layers"].size());
}

// Writes routing statistics to different kinds of files.
class RoutingStatisticsFile : public ::testing::Test {
 protected:
  void SetUp() override {
    if (model_.empty()) GTEST_SKIP() << "no model beside the clone";
    std::ofstream(folder_.path() + "/text") << "Once upon a time";
  }
  std::string path(const char* name) const { return folder_.path() + "/" + name; }
  /// Runs `script` in a shell; "$0" "$@" in it writes the statistics to `file`.
  testing::Ran write(const std::string& file, const std::string& script = "\"$0\" \"$@\"") const {
    return testing::run_shell(script, {"perplexity", model_, "--text", path("text"), "--threads",
                                       "1", "--routing-statistics", file});
  }
  static void expect_statistics(const std::string& text) {
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(json.is_object()) << text;
    EXPECT_EQ(json["format"], "moracle routing statistics 1");
  }
  static bool is(const std::string& file, std::filesystem::file_type type) {
    return std::filesystem::symlink_status(file).type() == type;
  }
  const std::string model_ = small_model();
  const TemporaryFolder folder_;
};

TEST_F(RoutingStatisticsFile, WritesToNamedPipeWithoutReplacingIt) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const auto ran = write(path("pipe"), "cat '" + path("pipe") + "' > '" + path("read") +
                                           "' & \"$0\" \"$@\"; code=$?; wait; exit $code");
  EXPECT_EQ(ran.code, 0) << ran.err;
  expect_statistics(testing::content_of(path("read")));
  EXPECT_TRUE(is(path("pipe"), std::filesystem::file_type::fifo));
  EXPECT_FALSE(std::filesystem::exists(path("pipe.moracle-new")));
}

TEST_F(RoutingStatisticsFile, RejectsNamedPipeWithoutReader) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  testing::expect_one_line(write(path("pipe")),
                           {"/pipe: needs a process that reads it within 10 seconds; it has none"},
                           1);
  EXPECT_TRUE(is(path("pipe"), std::filesystem::file_type::fifo));
}

TEST_F(RoutingStatisticsFile, WritesToDeviceWithoutReplacingIt) {
  const auto make = [&](const char* name, unsigned minor) {
    return ::mknod(path(name).c_str(), S_IFCHR | 0600, ::makedev(1, minor)) == 0;
  };
  if (!make("null", 3) || !make("full", 7)) GTEST_SKIP() << "only root may make devices";
  // Devices on a file system mounted with nodev do not open.
  if (!std::ofstream(path("null"))) GTEST_SKIP() << "this file system opens no devices";
  const auto ran = write(path("null"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  const auto full = write(path("full"));
  EXPECT_EQ(full.code, 1);
  EXPECT_THAT(full.err, HasSubstr("/full: needs to be written; No space left on device"));
  for (const char* name : {"null", "full"})
    EXPECT_TRUE(is(path(name), std::filesystem::file_type::character)) << name;
}

TEST_F(RoutingStatisticsFile, WritesToStdoutBesideResult) {
  // With a file or a pipe, stdout keeps the command's text.
  for (const char* script : {"\"$0\" \"$@\"", "\"$0\" \"$@\" | cat"}) {
    const auto ran = write("/dev/stdout", script);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("perplexity"));
    ASSERT_NE(ran.out.find('{'), ran.out.npos) << ran.out;
    expect_statistics(
        ran.out.substr(ran.out.find('{'), ran.out.rfind('}') + 1 - ran.out.find('{')));
  }
}

TEST_F(RoutingStatisticsFile, ReplacesTargetOfSymlink) {
  std::ofstream(path("target")) << "old";
  std::filesystem::create_symlink("target", path("link"));
  EXPECT_EQ(write(path("link")).code, 0);
  EXPECT_TRUE(is(path("link"), std::filesystem::file_type::symlink));
  expect_statistics(testing::content_of(path("target")));
}

TEST(PlacementCommand, RejectsInvalidPlacementFiles) {
  const std::string model = small_model();
  if (model.empty()) GTEST_SKIP() << "no model beside the clone";
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/load.json";
  expect_refused({"explain", model, "--parallel", "ep=2", "--placement", "striped"},
                 {"linear, round-robin, or a file of --routing-statistics", "'striped'"});
  expect_refused({"explain", model, "--placement", "round-robin"}, {"--parallel"});
  expect_refused({"explain", model, "--parallel", "ep=2", "--redundant-experts", "1"},
                 {"--placement FILE with routing statistics", "the placement is linear"});
  std::ofstream(file) << R"({"format": "moracle routing statistics 1", "architecture": "Other",
                             "num_layers": 1, "layers": []})";
  expect_refused({"explain", model, "--parallel", "ep=2", "--placement", file},
                 {"load.json", "architecture", "'Other'"});
  expect_refused({"bench", "--parallel", "ep=2", "--placement", file}, {"random weights"});
  expect_refused({"run", model, "-p", "a", "--routing-statistics", folder.path()},
                 {"a file to write", "it is a folder"}, 1);
}

}  // namespace
}  // namespace moracle::placement_test
