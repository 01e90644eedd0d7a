// Tests the output of `moracle bench`, with small shapes: the times do not matter.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "paths.h"
#include "run_command.h"

namespace moracle::bench_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::expect_refused;
using ::testing::HasSubstr;
using testing::Ran;
using testing::run_command;

Ran bench(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"bench", "--shape",   "8x64x32x2", "--seconds",
                                        "0.01",  "--threads", "1",         "--probe-megabytes",
                                        "4"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_command(arguments);
}

Json bench_json(std::vector<std::string> more) {
  more.push_back("--json");
  const Ran ran = bench(more);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  Json json = Json::parse(ran.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << ran.out;
  return json;
}

TEST(Bench, JsonHasLimitsAndOneRowPerCell) {
  const Json json = bench_json({"--scheme", "int8-w8a8,int4-w4a16-g32", "--tokens", "1,4"});
  EXPECT_EQ(json["limits"]["threads"], 1);
  EXPECT_GT(json["limits"]["read_gb_per_s"].get<double>(), 0);
  for (const auto& peak : json["limits"]["gop_per_s"]) EXPECT_GT(peak.get<double>(), 0);
  ASSERT_EQ(json["rows"].size(), 4u);
  std::set<std::string> cells;
  for (const Json& row : json["rows"]) {
    EXPECT_EQ(row["shape"], "8x64x32x2");
    EXPECT_EQ(row["threads"], 1);
    EXPECT_TRUE(row["chosen"].get<bool>());
    ASSERT_EQ(row["matrices"].size(), 2u);
    EXPECT_EQ(row["matrices"][0]["kernels"][0]["from_tokens"], 1);
    const auto tokens = row["num_tokens"].get<int64_t>();
    EXPECT_EQ(row["ops"], 2 * 3 * 64 * 32 * 2 * tokens);
    const int64_t expert = row["scheme"] == "int8-w8a8" ? 3 * 64 * 32 + 4 * (64 + 64)
                                                        : 3 * 64 * 32 / 2 + 4 * 3 * 64 * 32 / 32;
    if (tokens == 1) {
      EXPECT_EQ(row["bytes"], 2 * expert);
    }
    EXPECT_GT(row["us_min"].get<double>(), 0);
    EXPECT_GE(row["us_median"].get<double>(), row["us_min"].get<double>());
    EXPECT_GT(row["share_of_limit"].get<double>(), 0);
    cells.insert(row["scheme"].get<std::string>() + " " + std::to_string(tokens));
  }
  EXPECT_EQ(cells.size(), 4u);
}

TEST(Bench, AllBackendsMarksOracleChoiceAndGivesReasonsForOthers) {
  const Json json = bench_json({"--all-backends", "--tokens", "1"});
  int chosen = 0;
  std::set<std::string> backends;
  for (const Json& row : json["rows"]) {
    chosen += row["chosen"].get<bool>();
    backends.insert(row["backend"].get<std::string>());
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_TRUE(backends.contains("cpu"));
  EXPECT_TRUE(backends.contains("reference"));
  ASSERT_FALSE(json["refused"].empty());
  for (const Json& refusal : json["refused"]) {
    EXPECT_FALSE(backends.contains(refusal["backend"].get<std::string>()));
    EXPECT_THAT(refusal["reason"].get<std::string>(), HasSubstr("needs"));
  }
  const Ran text = bench({"--all-backends", "--tokens", "1"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("\n  >  8x64x32x2"));
  EXPECT_THAT(text.out, HasSubstr("no  cuda-cublaslt, cuda-sm90"));
}

TEST(Bench, ShowsAnchorsBesideTheirCells) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/anchors.json";
  auto row = [](const char* scheme, const char* impl, int tokens, Json us) {
    return Json{{"shape", "8x64x32x2"},
                {"scheme", scheme},
                {"impl", impl},
                {"M", tokens},
                {"us_graph", us}};
  };
  std::ofstream(path) << Json{row("int8_w8a8_ch", "vllm-triton-0.24", 1, 40.0),
                              row("int8_w8a8_ch", "vllm-triton-0.24+shorttune", 1, 20.0),
                              row("int8_w8a8_ch", "humming-0.1.19", 1, 30.0),
                              row("fp8_w8a8_ch", "vllm-triton-0.24", 1, 10.0),
                              row("fp8_w8a8_ch", "vllm-cutlass-0.24", 1, 12.0),
                              row("fp8_w8a8_block", "vllm-triton-0.24", 1, 14.0),
                              row("fp8_w8a8_block", "vllm-deepgemm-0.24", 1, 13.0),
                              row("int4_w4a16_g32", "humming-0.1.19", 1, 15.0),
                              row("int4_w4a16_g32", "vllm-marlin-0.24", 1, nullptr)};
  const Json json = bench_json({"--anchors", path, "--tokens", "1,2", "--scheme",
                                "int8-w8a8,fp8-w8a8-channel,fp8-w8a8-block128x128,int4-w4a16-g32,"
                                "bf16"});
  ASSERT_EQ(json["rows"].size(), 10u);
  for (const Json& cell : json["rows"]) {
    const std::string scheme = cell["scheme"];
    if (cell["num_tokens"] == 2 || scheme == "bf16") {
      EXPECT_FALSE(cell.contains("best_public")) << scheme;
      continue;
    }
    const Json& best = cell["best_public"];
    const double ours = cell["us_median"];
    EXPECT_NEAR(best["ratio"].get<double>(), best["us"].get<double>() / ours, 1e-9);
    const bool int8 = scheme == "int8-w8a8", channel = scheme == "fp8-w8a8-channel";
    EXPECT_EQ(best["us"], int8 ? 20 : channel ? 10 : scheme == "int4-w4a16-g32" ? 15 : 13);
    if (scheme == "int4-w4a16-g32") {
      EXPECT_FALSE(cell.contains("vllm"));
      continue;
    }
    EXPECT_EQ(cell["vllm"]["impl"], channel ? "vllm-cutlass-0.24" : "vllm-triton-0.24") << scheme;
    EXPECT_EQ(cell["vllm"]["us"], int8 ? 40 : channel ? 12 : 14);
  }
  const Ran text = bench({"--anchors", path, "--tokens", "1"});
  EXPECT_THAT(text.out, HasSubstr("best public"));
  EXPECT_THAT(text.out, HasSubstr("geometric mean of 1 row"));

  expect_refused({"bench", "--anchors", path + "-none"}, {"anchors.json-none", "--anchors"});
  std::ofstream(path) << "{}";
  expect_refused({"bench", "--anchors", path}, {"anchors.json", "a list of"});
  std::ofstream(path) << "[{\"shape\": 1}]";
  expect_refused({"bench", "--anchors", path}, {"anchors.json", "row 0"});
  for (const auto& [tokens, us] : {std::pair{0, 1.0}, {-1, 1.0}, {1, 0.0}, {1, -2.0}}) {
    // Not Json{…}: compilers differ on whether braces around one value make a list.
    std::ofstream(path) << Json::array({row("int8_w8a8_ch", "humming-0.1.19", tokens, us)});
    expect_refused({"bench", "--anchors", path}, {"anchors.json", "row 0", "above 0"});
  }
}

TEST(Bench, HidesCpuFeaturesOnRequest) {
  const Json json = bench_json({"--without", "avx2", "--tokens", "1"});
  ASSERT_EQ(json["rows"].size(), 1u);
  EXPECT_EQ(json["rows"][0]["backend"], "cpu");
  for (const auto& [peak, rate] : json["limits"]["gop_per_s"].items())
    EXPECT_EQ(peak.find("avx"), peak.npos) << peak;
  expect_refused({"bench", "--without", "avx9"}, {"'avx9'", "avx512_vnni"});
}

TEST(Bench, MeasuresNamedBackend) {
  const Json json = bench_json({"--backend", "reference", "--tokens", "2"});
  ASSERT_EQ(json["rows"].size(), 1u);
  EXPECT_EQ(json["rows"][0]["backend"], "reference");
  EXPECT_FALSE(json["rows"][0]["chosen"].get<bool>());
}

TEST(Bench, RoundsActivationsOnRequest) {
  EXPECT_FALSE(bench_json({"--tokens", "2"}).contains("activations"));
  const Json json = bench_json({"--tokens", "2", "--scheme", "bf16", "--activations", "bf16"});
  EXPECT_EQ(json["activations"], "bf16");
  ASSERT_EQ(json["rows"].size(), 1u);
  expect_refused({"bench", "--activations", "int8"}, {"--activations", "int4-w4a8-g128"});
  expect_refused({"bench", "--activations", "fp4"}, {"--activations", "'fp4'"});
  expect_refused({"bench", "--weights", "folded"}, {"--weights", "fp8-w8a8-g128-token"});
  expect_refused({"bench", "--model-shape", "qwen3-30b-a3b", "--activations", "int8"},
                 {"--activations", "int4-w4a8-g128"});
}

TEST(Bench, SkewsRoutingOnRequest) {
  const Json uniform = bench_json({"--tokens", "4"});
  EXPECT_FALSE(uniform.contains("zipf"));
  const Json skewed = bench_json({"--tokens", "4", "--zipf", "8"});
  EXPECT_EQ(skewed["zipf"], 8);
  // Skewed routing reads fewer experts, and so fewer bytes.
  EXPECT_LT(skewed["rows"][0]["bytes"].get<int64_t>(), uniform["rows"][0]["bytes"].get<int64_t>());
  expect_refused({"bench", "--zipf", "-1"}, {"--zipf"});
  expect_refused({"bench", "--zipf", "1", "--model-shape", "qwen3-30b-a3b"}, {"--zipf"});
  expect_refused({"bench", "--zipf", "1", "--parallel", "ep=2"}, {"--zipf"});
}

TEST(Bench, RejectsInvalidArguments) {
  expect_refused({"bench", "--shape", "gpt-5"}, {"--shape", "qwen3-30b-a3b", "'gpt-5'"});
  expect_refused({"bench", "--shape", "4x64x32x8"}, {"--shape", "'4x64x32x8'"});
  expect_refused({"bench", "--scheme", "int3"}, {"scheme 'int3'", "int8-w8a8"});
  expect_refused({"bench", "--tokens", "1,,2"}, {"--tokens", "''"});
  expect_refused({"bench", "--tokens", "0"}, {"--tokens", "'0'"});
  expect_refused({"bench", "--tokens", "1x"}, {"--tokens", "'1x'"});
  expect_refused({"bench", "--seconds", "0"}, {"--seconds"});
  expect_refused({"bench", "--threads", "-1"}, {"--threads"});
  expect_refused({"bench", "--probe-megabytes", "1000000"}, {"--probe-megabytes", "1000000"});
  expect_refused({"bench", "--device", "cuda:4096"}, {"device 'cuda:4096'"});
  expect_refused({"bench", "--device", "tpu"}, {"--device", "'tpu'"});
  expect_refused({"bench", "--backend", "fastest"}, {"--backend", "'fastest'"});
  expect_refused({"bench", "--backend", "a=cpu"}, {"--backend", "'a=cpu'"});
  expect_refused({"bench", "--backend", "cpu", "--all-backends"}, {"--all-backends"});
  expect_refused({"bench", "--backend", "cuda-sm90"}, {"cuda-sm90", "platform"});
  for (const char* option : {"--layers", "--output-scheme"})
    expect_refused({"bench", option, "1"}, {std::string(option) + " requires --model-shape"});
  for (const char* option : {"--kv-cache", "--context", "--batch", "--prompt"})
    expect_refused({"bench", option, "1"},
                   {std::string(option) + ": needs --model or --model-shape"});
  expect_refused({"bench", "--quantization", "int8-per-channel"},
                 {"--quantization: needs --load or --model"});
  expect_refused({"bench", "--model", "m", "--model-shape", "qwen3-30b-a3b"}, {"--model"});
  expect_refused({"bench", "--model-shape", "gpt-5"}, {"--model-shape", "mixtral-8x7b"});
  expect_refused(
      {"bench", "--model-shape", "qwen3-30b-a3b", "--layers", "49", "--probe-megabytes", "4"},
      {"--layers", "1 to 48", "49"});
  expect_refused(
      {"bench", "--model-shape", "qwen3-30b-a3b", "--context", "50000", "--probe-megabytes", "4"},
      {"--context", "50000"});
}

TEST(Bench, StopsOnRequestWithOneLine) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Ran layers = testing::run_interrupted({"bench", "--seconds", "3600"}, signal);
    testing::expect_one_line(layers, {"stopped on request"}, 1);
  }
}

TEST(Bench, TimesACheckpoint) {
  const std::string file = testing::golden_dir() + "/gguf/models/qwen3moe.gguf";
  const std::vector<std::string> bench{
      "bench", "--model",   file, "--context",         "8", "--prompt", "16", "--seconds",
      "0.001", "--threads", "2",  "--probe-megabytes", "4"};
  std::vector<std::string> with_json = bench;
  with_json.push_back("--json");
  const Ran ran = run_command(with_json);
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << ran.out;
  EXPECT_EQ(json["model"], file);
  EXPECT_EQ(json["layers"], json["all_layers"]);
  EXPECT_GT(json["tokens_per_second"].get<double>(), 0);
  EXPECT_GT(json["prompt_tokens_per_second"].get<double>(), 0);
  EXPECT_FALSE(json.contains("scheme"));
  std::vector<std::string> rounded = bench;
  rounded.insert(rounded.end(), {"--activations", "int8"});
  const Ran text = run_command(rounded);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, ::testing::HasSubstr("qwen3moe.gguf"));
  EXPECT_THAT(text.out, ::testing::HasSubstr("int8 activations"));
  expect_refused({"bench", "--model", "nowhere"}, {"nowhere"});
}

TEST(Bench, ComparesCheckpointLoadWithFileRead) {
  const std::string model = testing::models_dir() + "/qwen3moe-gptq-int4-g128";
  const Ran ran =
      run_command({"bench", "--load", model, "--seconds", "0.001", "--threads", "2", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << ran.out;
  EXPECT_EQ(json["bytes"], std::filesystem::file_size(model + "/model.safetensors"));
  EXPECT_EQ(json["threads"], 2);
  EXPECT_GE(json["runs"].get<int>(), 1);
  const auto seconds = json["seconds"].get<double>();
  EXPECT_GT(seconds, json["open_seconds"].get<double>());
  EXPECT_NEAR(json["gb_per_s"].get<double>(), json["bytes"].get<double>() / seconds / 1e9, 1e-3);
  EXPECT_NEAR(json["share_of_reading"].get<double>(),
              json["gb_per_s"].get<double>() / json["read_gb_per_s"].get<double>(), 1e-3);
  const Ran text = run_command({"bench", "--load", model, "--seconds", "0.001", "--cold"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("from the disk"));
  expect_refused({"bench", "--load", model, "--all-backends"}, {"--load"});
  expect_refused({"bench", "--load", model + "-none"}, {"gptq-int4-g128-none"});
}

}  // namespace
}  // namespace moracle::bench_test
