// Writes the tiny models of tests/golden/architectures as GGUF and compares both forms. GGUF cannot
// express the settings of some of them: these are refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/scalar.h"
#include "checkpoint/expect_error.h"
#include "checkpoint/experts/convention.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/state.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "moracle/gguf.h"
#include "quant/blocks/encode_blocks.h"
#include "support/must.h"
#include "support/sample.h"
#include "support/temporary_folder.h"

namespace moracle::gguf_writing_test {
namespace {

using testing::expect_error;
using ::testing::HasSubstr;
using testing::must;
using testing::SyntheticCheckpoint;

// Models with settings for which llama.cpp has other fixed values.
const std::map<std::string, std::string>& refused() {
  static const std::map<std::string, std::string> all = {
      {"afmoe_yarn", "scale of the embedding"},
      {"bailing_hybrid_plain", "kda_safe_gate"},
      {"cohere2_moe_sigmoid", "layer 1: needs a layer with experts"},
      {"deepseek_v3", "factor of the rotary embedding"},
      {"deepseek_v3_plain_query", "interleaved rotary embedding"},
      {"dots1", "sliding window"},
      {"exaone_moe_yarn", "layer 1: needs a layer with experts"},
      {"glm4_moe_lite_order", "blk.0.ffn_gate.weight"},
      {"gpt_oss", "activation function"},
      {"granite_moe_hybrid_dense", "ssm_conv1d.bias"},
      {"granite_moe_swa", "rotary frequencies"},
      {"kimi_linear", "linear_attn_config"},
      {"kimi_linear_order", "linear_attn_config"},
      {"laguna_columns", "layer 1: needs a layer with experts"},
      {"lfm2_moe", "routing"},
      {"llama4", "attention chunk"},
      {"llama4_plain", "attention chunk"},
      {"mellum_dense", "layer 0: needs a layer with experts"},
      {"mimo_v2_flash_biased", "routing"},
      {"minimax", "scale of"},
      {"mistral4_groups", "interleaved rotary embedding"},
      {"mixtral", "sliding window"},
      {"nemotron_h", "it has mlp"},
      {"nemotron_h_latent", "it has mlp"},
      {"phimoe", "factor of long contexts"},
      {"phimoe_long", "output.bias"},
      {"phimoe_plain", "original_max_position_embeddings"},
      {"qwen2_moe", "layer 0: needs a layer with experts"},
      {"qwen2_moe_llama3", "blk.0.attn_q.bias"},
      {"qwen2_moe_windows", "sliding window"},
      {"qwen3_moe", "layer 1: needs a layer with experts"},
      {"qwen3_moe_window", "sliding window"},
      {"qwen3_next", "layer 2: needs a layer with experts"},
  };
  return all;
}

Result<std::vector<float>> logits_of(const std::string& path, const std::vector<int32_t>& ids) {
  MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(path));
  MORACLE_TRY(Model model,
              Model::load(checkpoint, {.backend = testing::backend("cpu"), .threads = 2}));
  return testing::all_logits(model, ids);
}

class GgufWriting : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string from_ = testing::golden_folder(GetParam());
  const testing::TemporaryFolder folder_;
  const std::string to_ = folder_.path() + "/written.gguf";
};

TEST_P(GgufWriting, KeepsLogitsOrNamesTheSettingThatGgufLacks) {
  const Checkpoint from = must(Checkpoint::open(from_));
  const auto report = write_gguf(from, must(GgufTypes::parse("none")), to_);
  const auto listed = refused().find(GetParam());
  std::string reason = listed == refused().end() ? "" : listed->second;
  if (find_convention(from.architecture())->gguf.empty()) reason = "a family with a table of GGUF";
  if (!reason.empty()) {
    ASSERT_FALSE(report) << "written";
    EXPECT_EQ(report.error().kind, ErrorKind::kUnsupported);
    EXPECT_THAT(report.error().to_string(), HasSubstr(reason));
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
    return;
  }
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->bytes_after, static_cast<int64_t>(std::filesystem::file_size(to_)));
  const auto ids = testing::golden_reference(GetParam()).ids;
  const auto want = must(logits_of(from_, ids)), got = must(logits_of(to_, ids));
  // Types do not change. Norms that GGUF stores with 1 added are rounded once more.
  EXPECT_LT(testing::relative_difference(got, want), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Golden, GgufWriting,
                         ::testing::ValuesIn(testing::sample_of(testing::golden_models(),
                                                                "GgufWriting")),
                         [](const auto& param) { return param.param; });

class GgufWriter : public ::testing::Test {
 protected:
  Result<GgufReport> write(const SyntheticCheckpoint& model, const std::string& types,
                           const Progress& progress = {}) const {
    MORACLE_CHECK(model.write(from_));
    MORACLE_TRY(const Checkpoint from, Checkpoint::open(from_));
    MORACLE_TRY(const GgufTypes parsed, GgufTypes::parse(types));
    return write_gguf(from, parsed, to_, progress);
  }
  // Every K is a multiple of 32; 256 divides none.
  static SyntheticCheckpoint small() {
    return SyntheticCheckpoint::plain({.hidden = 64, .intermediate = 32, .heads = 2});
  }
  const testing::TemporaryFolder folder_;
  const std::string from_ = folder_.path() + "/from", to_ = folder_.path() + "/to.gguf";
};

std::map<std::string, DType> types_in(const std::string& path) {
  std::map<std::string, DType> types;
  const auto file = must(GgufFile::open(path));
  for (const auto& [name, stored] : file.file.tensors()) types[name] = stored.view.dtype;
  return types;
}

TEST_F(GgufWriter, TypesFollowPatternsOfModulesAndOfStoredNames) {
  std::filesystem::create_directory(from_);
  const auto report =
      write(small(), "blk.1.ffn_down_exps=q8_0,*.down_proj=q4_0,lm_head=none,*.o_proj=bf16,q8_0");
  ASSERT_TRUE(report) << report.error().to_string();
  auto types = types_in(to_);
  EXPECT_EQ(types["blk.0.ffn_down_exps.weight"], DType::kQ4_0);
  EXPECT_EQ(types["blk.0.ffn_up_exps.weight"], DType::kQ8_0);
  EXPECT_EQ(types["blk.1.ffn_down_exps.weight"], DType::kQ8_0);
  EXPECT_EQ(types["blk.0.attn_output.weight"], DType::kBF16);
  EXPECT_EQ(types["token_embd.weight"], DType::kQ8_0);
  EXPECT_EQ(types["output.weight"], DType::kBF16);
  for (const char* always : {"blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight"})
    EXPECT_EQ(types[always], DType::kF32) << always;
}

TEST_F(GgufWriter, WritesBlocksThatRowsFitAndReportsIt) {
  std::filesystem::create_directory(from_);
  const auto report = must(write(small(), "q4_k"));
  ASSERT_FALSE(report.fallbacks.empty());
  for (const GgufReport::Fallback& one : report.fallbacks) {
    EXPECT_EQ(one.requested, DType::kQ4K);
    EXPECT_EQ(one.written, DType::kQ8_0);
    EXPECT_NE(one.columns % 256, 0);
  }
  EXPECT_EQ(types_in(to_)["blk.0.ffn_gate_exps.weight"], DType::kQ8_0);
}

// The file holds encode_blocks() of the weights, so its error is that of the encoder.
TEST_F(GgufWriter, BlocksAreThoseOfTheEncoder) {
  std::filesystem::create_directory(from_);
  must(write(small(), "q4_0"));
  const Checkpoint from = must(Checkpoint::open(from_)), written = must(Checkpoint::open(to_));
  const std::string name = "model.layers.1.mlp.experts.2.up_proj.weight";
  const auto source = must(from.read(name)), blocks = must(written.read(name));
  std::vector<float> values(source.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, source.data() + 2 * i, 2);
    values[i] = bf16_to_float(bits);
  }
  std::vector<std::byte> want(blocks.size());
  ASSERT_EQ(want.size(), values.size() / 32 * 18);
  ASSERT_TRUE(encode_blocks(DType::kQ4_0, values.data(), static_cast<int64_t>(values.size()) / 32,
                            want.data()));
  EXPECT_EQ(blocks, want);
}

// An error about the request, which names no file.
template <class T>
void expect_refused(const Result<T>& result, ErrorKind kind,
                    std::initializer_list<const char*> facts) {
  ASSERT_FALSE(result) << "accepted";
  EXPECT_EQ(result.error().kind, kind);
  for (const char* fact : facts) EXPECT_THAT(result.error().to_string(), HasSubstr(fact));
}

TEST_F(GgufWriter, RefusesRequestsThatFitNothing) {
  std::filesystem::create_directory(from_);
  constexpr auto kWrong = ErrorKind::kInvalidArgument;
  expect_refused(GgufTypes::parse("q5_k"), kWrong,
                 {"scheme: needs one of q8_0, q4_0, q4_k", "'q5_k' is unknown"});
  expect_refused(GgufTypes::parse("*.o_proj=bf16,q8_0,q4_0"), kWrong, {"'q4_0' is the second"});
  expect_refused(write(small(), "*.9.*=q8_0,bf16"), kWrong, {"scheme", "'*.9.*' decides for none"});
  expect_refused(write(small(), "*.experts.1.*=q8_0,bf16"), kWrong,
                 {"one type for '", "experts.0.gate_proj", "bf16 and q8_0"});
  // Queries, keys and values are one matrix in this model.
  expect_refused(write(small(), "*.v_proj=bf16,q8_0"), ErrorKind::kUnsupported,
                 {"self_attn.v_proj", "because both read the same input"});
  EXPECT_FALSE(std::filesystem::exists(to_));
}

TEST_F(GgufWriter, RefusesPlacesThatItMustNotReplace) {
  std::filesystem::create_directory(from_);
  ASSERT_TRUE(small().write(from_));
  const Checkpoint from = must(Checkpoint::open(from_));
  const GgufTypes types = must(GgufTypes::parse("q8_0"));
  const auto refuse = [&](const std::string& file, const std::string& fact) {
    expect_error(write_gguf(from, types, file), ErrorKind::kInvalidArgument, {file, fact});
  };
  refuse(folder_.path() + "/to", "ends with .gguf");
  refuse(folder_.write("text.gguf", "no model"), "it is another file");
  std::filesystem::create_directory(folder_.path() + "/dir.gguf");
  refuse(folder_.path() + "/dir.gguf", "it is no regular file");
  refuse(folder_.path() + "/no/to.gguf", "does not exist");
  // A GGUF file is replaced.
  must(write_gguf(from, types, to_));
  must(write_gguf(from, types, to_));
  expect_error(write_gguf(must(Checkpoint::open(to_)), types, to_), ErrorKind::kUnsupported,
               {"it is a model in GGUF"});
}

TEST_F(GgufWriter, CancelledWorkAndBadWeightsLeaveNoFile) {
  std::filesystem::create_directory(from_);
  expect_refused(write(small(), "q8_0", [](int64_t done, int64_t) { return done == 0; }),
                 ErrorKind::kCancelled, {"stopped on request"});
  SyntheticCheckpoint broken = small();
  auto& bytes = broken.tensors.at("model.layers.0.mlp.experts.1.up_proj.weight").bytes;
  bytes[0] = std::byte{0xc0};  // NaN in bf16
  bytes[1] = std::byte{0x7f};
  expect_error(write(broken, "q8_0"), ErrorKind::kBadFile,
               {"model.layers.0.mlp.experts.1.up_proj.weight", "nan"});
  size_t left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    (void)entry;
    ++left;
  }
  EXPECT_EQ(left, 1u);  // the source
}

TEST_F(GgufWriter, SettingsThatLlamaCppFixesOtherwiseAreNamed) {
  std::filesystem::create_directory(from_);
  SyntheticCheckpoint model = small();
  model.config["norm_topk_prob"] = false;  // llama.cpp renormalizes in qwen3moe
  expect_error(write(model, "q8_0"), ErrorKind::kUnsupported,
               {"layer 0", "routing", "GGUF files of qwen3moe"});
  model = small();
  const std::string odd = "model.layers.0.mlp.odd.weight";
  model.tensors[odd] = model.tensors.at("model.norm.weight");
  model.tensors[odd].name = odd;
  expect_error(write(model, "q8_0"), ErrorKind::kBadFile, {odd});
}

}  // namespace
}  // namespace moracle::gguf_writing_test
