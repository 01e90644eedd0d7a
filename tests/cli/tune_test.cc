// Tests `moracle tune`, and that other verbs read its cache.
#include <sys/file.h>
#include <sys/stat.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "paths.h"
#include "run_command.h"

namespace moracle::tune_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::content_of;
using testing::expect_refused;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Ran;
using testing::run_command;
using testing::TemporaryFolder;

class TuneVerb : public ::testing::Test {
 protected:
  void SetUp() override {
    if (model_.empty()) GTEST_SKIP() << "the small model is not there";
  }
  void write(const std::string& text) { std::ofstream(cache_) << text; }

  const std::string model_ = testing::small_model();
  const TemporaryFolder folder_;
  const std::string cache_ = folder_.path() + "/new/tuning.json";
};

TEST_F(TuneVerb, WritesCacheThatExplainReads) {
  const Ran tuned = run_command({"tune", model_, "--seconds", "1", "--cache", cache_, "--json"});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  const Json json = Json::parse(tuned.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << tuned.out;
  EXPECT_EQ(json["cache"], cache_);
  ASSERT_EQ(json["layers"].size(), 1u);
  ASSERT_FALSE(json["layers"][0]["rows"].empty());
  for (const Json& row : json["layers"][0]["rows"]) EXPECT_GT(row["us_median"].get<double>(), 0);

  const Ran shown = run_command({"explain", model_, "--cache", cache_});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("fastest here: "));
  EXPECT_THAT(shown.out, HasSubstr("measured here: "));
  // A known machine's choice ignores this machine's times.
  const Ran other = run_command({"explain", model_, "--cache", cache_, "--machine", "xeon-avx512"});
  EXPECT_THAT(other.out, Not(HasSubstr("measured here")));
  const Ran ran = run_command({"run", model_, "-p", "a", "-n", "1", "--cache", cache_});
  EXPECT_EQ(ran.code, 0) << ran.err;
}

// Layers are timed in the scheme that will run.
TEST_F(TuneVerb, TimesRequestedActivations) {
  const std::vector<std::string> int8 = {"--activations", "int8", "--cache", cache_};
  auto with_int8 = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), int8.begin(), int8.end());
    return run_command(arguments);
  };
  const Ran tuned = with_int8({"tune", model_, "--seconds", "0.5", "--json"});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  const Json json = Json::parse(tuned.out, nullptr, false);
  EXPECT_THAT(json["layers"][0]["layer"].get<std::string>(), HasSubstr("int4-w4a8"));
  const auto times = [](const Ran& explained) {
    const Json answer = Json::parse(explained.out, nullptr, false);
    size_t count = 0;
    for (const Json& row : answer["groups"][0]["considered"]) {
      for (const Json& time : row["tuned"]) {
        EXPECT_TRUE(row["accepted"].get<bool>());
        EXPECT_GE(time["num_tokens"].get<int>(), 1);
        EXPECT_GT(time["us_median"].get<double>(), 0);
        ++count;
      }
    }
    return count;
  };
  EXPECT_EQ(times(with_int8({"explain", model_, "--json"})), json["layers"][0]["rows"].size());
  EXPECT_EQ(times(run_command({"explain", model_, "--json", "--cache", cache_})), 0u);
  expect_refused({"tune", model_, "--activations", "int5"}, {"--activations"});
  expect_refused({"tune", model_, "--weights", "auto"}, {"--weights", "packed or folded"});
  expect_refused({"tune", model_, "--weights", "folded"}, {"fp8 activations"});
}

TEST_F(TuneVerb, KeepsEntriesOfOtherMachinesAndReplacesItsOwn) {
  ASSERT_EQ(run_command({"tune", model_, "--seconds", "0.5", "--cache", cache_}).code, 0);
  Json file = Json::parse(content_of(cache_));
  ASSERT_EQ(file["layers"].size(), 1u);
  Json other = file["layers"][0];
  other["machine"]["cpu"] = "another";
  file["layers"].push_back(other);
  write(file.dump());
  ASSERT_EQ(run_command({"tune", model_, "--seconds", "0.5", "--cache", cache_}).code, 0);
  file = Json::parse(content_of(cache_));
  ASSERT_EQ(file["layers"].size(), 2u);
  EXPECT_EQ(file["layers"][0], other);
  // Another version has different kernels.
  file["version"] = "0.0.0";
  write(file.dump());
  EXPECT_THAT(run_command({"explain", model_, "--cache", cache_}).out,
              Not(HasSubstr("measured here")));
}

TEST_F(TuneVerb, NamesBrokenCache) {
  std::filesystem::create_directories(folder_.path() + "/new");
  std::string version = run_command({"--version"}).out;  // "moracle 0.1.0"
  version = version.substr(8, version.find_last_not_of('\n') - 7);
  const std::string ours = "{\"version\": \"" + version + "\", \"layers\": ";
  const std::string entry =
      R"([{"machine": 1, "layer": "a", "times": [{"backend": "cpu", "num_tokens": "one"}]}])";
  for (const std::string& text : {std::string(), std::string("[]"), std::string("{\"version\": 1}"),
                                  ours + "[3]}", ours + "3}", ours + entry + "}", ours}) {
    write(text);
    for (const char* verb : {"tune", "explain"})
      expect_refused({verb, model_, "--cache", cache_}, {cache_, "moracle tune"});
    expect_refused({"run", model_, "-p", "a", "--cache", cache_}, {cache_, "moracle tune"});
    EXPECT_EQ(content_of(cache_), text) << "a broken file is left as it is";
  }
}

TEST_F(TuneVerb, RejectsImpossibleTimesAndCountsInCache) {
  ASSERT_EQ(run_command({"tune", model_, "--seconds", "0.1", "--cache", cache_}).code, 0);
  const Json good = Json::parse(content_of(cache_));
  const std::pair<const char*, Json> rows[] = {
      {"us", 0},         {"us", -1},         {"us", -0.5},
      {"num_tokens", 0}, {"num_tokens", -1}, {"num_tokens", 18446744073709551615u}};
  for (const auto& [key, odd] : rows) {
    Json file = good;
    file["layers"][0]["times"] = {{{"backend", "cpu"}, {"num_tokens", 1}, {"us", 1.0}}};
    file["layers"][0]["times"][0][key] = odd;
    write(file.dump());
    expect_refused({"explain", model_, "--cache", cache_}, {cache_, "moracle tune"});
  }
}

TEST_F(TuneVerb, KeepsEntriesOfTwoConcurrentRuns) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::filesystem::remove(cache_);
    const Ran both = testing::run_shell(
        "\"$0\" tune \"$1\" --seconds 0.1 --cache \"$2\" & "
        "\"$0\" tune \"$1\" --seconds 0.1 --cache \"$2\" --activations int8; code=$?; wait $! && "
        "exit $code",
        {model_, cache_});
    ASSERT_EQ(both.code, 0) << both.err;
    EXPECT_EQ(Json::parse(content_of(cache_))["layers"].size(), 2u);
  }
}

TEST_F(TuneVerb, WaitsForCacheLock) {
  std::filesystem::create_directories(folder_.path() + "/new");
  const std::string name = cache_ + ".moracle-new";
  const int held = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  const Ran ran = testing::run_program(
      {testing::command_path(), "tune", model_, "--seconds", "0.1", "--cache", cache_},
      [&](pid_t pid) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        siginfo_t ended{};
        EXPECT_EQ(::waitid(P_PID, pid, &ended, WEXITED | WNOHANG | WNOWAIT), 0);
        EXPECT_EQ(ended.si_pid, 0) << "it went on without the lock";
        const std::string empty = "{\"version\": \"none\", \"layers\": []}";
        EXPECT_EQ(::write(held, empty.data(), empty.size()), static_cast<ssize_t>(empty.size()));
        std::filesystem::rename(name, cache_);  // as another process does that replaces the cache
        ::close(held);
      });
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(Json::parse(content_of(cache_))["layers"].size(), 1u);
}

TEST_F(TuneVerb, ReplacesTemporaryFileOfKilledProcess) {
  std::filesystem::create_directories(folder_.path() + "/new");
  std::ofstream(cache_ + ".moracle-new") << std::string(100'000, 'x');
  ASSERT_EQ(run_command({"tune", model_, "--seconds", "0.1", "--cache", cache_}).code, 0);
  EXPECT_EQ(Json::parse(content_of(cache_))["layers"].size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(cache_ + ".moracle-new"));
  const std::string link = folder_.path() + "/link";
  std::filesystem::create_symlink(folder_.path() + "/nowhere", link);
  expect_refused({"tune", model_, "--cache", link}, {link, "broken link"}, 1);
  // Keep a folder with the name of the temporary file: tune did not create it.
  std::filesystem::create_directory(cache_ + ".moracle-new");
  expect_refused({"tune", model_, "--seconds", "0.1", "--cache", cache_}, {"tuning.json"}, 1);
}

TEST_F(TuneVerb, RejectsCacheThatIsNotARegularFile) {
  const std::string pipe = folder_.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_refused({"tune", model_, "--seconds", "0.1", "--cache", pipe},
                 {"/pipe: needs a regular file; it is not a regular file"});
  EXPECT_EQ(std::filesystem::status(pipe).type(), std::filesystem::file_type::fifo);
}

TEST_F(TuneVerb, ReportsCacheThatCannotBeWritten) {
  expect_refused({"tune", model_, "--cache", "/proc/none/tuning.json"}, {"/proc/none"}, 1);
  expect_refused({"tune", model_, "--seconds", "0.5", "--cache", "/proc/none/tuning.json"},
                 {"/proc/none/tuning.json"}, 1);
  expect_refused({"tune", folder_.path()}, {"config.json"});
  expect_refused({"tune", model_, "--seconds", "0"}, {"--seconds"});
}

}  // namespace
}  // namespace moracle::tune_test
