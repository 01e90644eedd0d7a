// Tests the GPU-only output of `moracle bench --device cuda`.
#include <nlohmann/json.hpp>

#include "moracle/device.h"
#include "run_command.h"

namespace moracle::cuda_bench_test {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using testing::Ran;
using testing::run_command;

class CudaBench : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto opened = open_device("cuda"); !opened)
      GTEST_SKIP() << opened.error().to_string();
  }
  static Ran bench(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"bench",   "--device",          "cuda",
                                          "--shape", "8x64x32x2",         "--seconds",
                                          "0.02",    "--probe-megabytes", "64"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_command(arguments);
  }
};

TEST_F(CudaBench, ReportsReplaysCallsAndGpuLimits) {
  const Ran ran =
      bench({"--scheme", "int8-w8a8,bf16", "--tokens", "1,8", "--all-backends", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << ran.out;
  EXPECT_EQ(json["limits"]["device"], "cuda:0");
  EXPECT_FALSE(json["limits"].contains("threads"));
  EXPECT_GT(json["limits"]["gop_per_s"]["f32 simt"].get<double>(), 0);
  ASSERT_GE(json["rows"].size(), 4u);
  int chosen = 0;
  for (const Json& row : json["rows"]) {
    EXPECT_EQ(row["device"], "cuda:0");
    EXPECT_GT(row["us_host"].get<double>(), 0);
    EXPECT_GE(row["us_eager"].get<double>(), row["us_host"].get<double>());
    EXPECT_GT(row["us_median"].get<double>(), 0);
    EXPECT_TRUE(row["peak"].is_string());
    chosen += row["chosen"].get<bool>();
  }
  EXPECT_EQ(chosen, 4);
  const Ran text = bench({"--tokens", "1"});
  EXPECT_THAT(text.out, HasSubstr("cuda:0 ("));
  EXPECT_THAT(text.out, HasSubstr("eager"));
}

TEST_F(CudaBench, ComparesModelLoadWithCopyRate) {
  const std::string model = testing::small_model();
  if (model.empty()) GTEST_SKIP() << "the small model is not here";
  const Ran ran =
      run_command({"bench", "--device", "cuda", "--load", model, "--seconds", "0.001", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << ran.out;
  EXPECT_GT(json["copy_gb_per_s"].get<double>(), 1);
  EXPECT_GT(json["weight_gb_per_s"].get<double>(), 0);
  EXPECT_LT(json["share_of_copying"].get<double>(), 1.2);
  EXPECT_FALSE(json.contains("fresh_memory_gb_per_s"));
}

}  // namespace
}  // namespace moracle::cuda_bench_test
