// Tests models whose values overflow: generating and scoring fail and name the source of the first
// non-finite value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/scalar.h"
#include "base/text.h"
#include "models/golden_model.h"
#include "support/model_words.h"
#include "support/must.h"

namespace moracle::non_finite_test {
namespace {

using testing::golden_model;
using testing::golden_reference;
using ::testing::HasSubstr;
using testing::SyntheticCheckpoint;

// Element i of an f32 or bf16 tensor.
void put(auto& tensor, int64_t i, float value) {
  const uint16_t half = float_to_bf16(value);
  if (tensor.dtype == DType::kF32)
    std::memcpy(tensor.bytes.data() + 4 * i, &value, 4);
  else
    std::memcpy(tensor.bytes.data() + 2 * i, &half, 2);
}

// Sets every element of the tensors whose names contain `part` to `value`.
SyntheticCheckpoint with(const std::string& model, const std::vector<std::string>& parts,
                         float value) {
  SyntheticCheckpoint changed = golden_model(model);
  for (const std::string& part : parts) {
    int count = 0;
    for (auto& [name, tensor] : changed.tensors) {
      if (name.find(part) == name.npos) continue;
      ++count;
      const auto elements = static_cast<int64_t>(tensor.bytes.size()) * 8 / bits(tensor.dtype);
      for (int64_t i = 0; i < elements; ++i) put(tensor, i, value);
    }
    EXPECT_GT(count, 0) << part;
  }
  return changed;
}

struct Failures {
  std::vector<std::string> generating;  ///< greedy, from few, from all
  std::string scoring;
};
Failures failures(const SyntheticCheckpoint& written, const std::vector<int32_t>& ids,
                  int64_t max_num_tokens) {
  const Checkpoint checkpoint = testing::must(written.open());
  Model model = testing::must(Model::load(
      checkpoint,
      {.backend = testing::backend("cpu"), .threads = 2, .max_num_tokens = max_num_tokens}));
  Failures all;
  for (const SamplingOptions& sampling :
       {SamplingOptions{}, {.temperature = 1, .top_k = 5, .top_p = 0.5f}, {.temperature = 1}}) {
    GenerateOptions options;
    options.max_tokens = 4;
    options.sampling = sampling;
    const auto done = generate(model, ids, options);
    EXPECT_FALSE(done);
    if (done) continue;
    EXPECT_EQ(done.error().kind, ErrorKind::kBadFile);
    all.generating.push_back(done.error().to_string());
  }
  const auto scored = perplexity(model, ids, 16);
  EXPECT_FALSE(scored);
  if (!scored) all.scoring = scored.error().to_string();
  return all;
}

struct Case {
  const char* name;
  const char* model;
  std::vector<std::string> tensors;
  float value;
  const char* part;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}
class NonFiniteLogits : public ::testing::TestWithParam<Case> {};

TEST_P(NonFiniteLogits, FailRunAndNameLayerPart) {
  const Case& c = GetParam();
  const std::vector<int32_t> ids = golden_reference(c.model).ids;
  for (const int64_t max_num_tokens : {512, 3}) {
    SCOPED_TRACE(max_num_tokens);
    const Failures got = failures(with(c.model, c.tensors, c.value), ids, max_num_tokens);
    for (const std::string& message : got.generating) {
      EXPECT_THAT(message, HasSubstr(str("logits at position ", ids.size() - 1,
                                         ": needs finite numbers; ", c.part, " gives ")));
    }
    EXPECT_THAT(got.scoring, HasSubstr("logits at position "));
    EXPECT_THAT(got.scoring, HasSubstr(str(": needs finite numbers; ", c.part, " gives ")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Parts, NonFiniteLogits,
    ::testing::Values(
        Case{"Norm",
             "qwen3_moe",
             {"layers.1.input_layernorm"},
             3e38f,
             "layer 1, norm before attention"},
        Case{"Attention",
             "qwen3_moe",
             {"layers.0.self_attn.v_proj", "layers.0.self_attn.o_proj"},
             1e30f,
             "layer 0, attention"},
        Case{
            "Experts", "mixtral", {"layers.0.block_sparse_moe.experts"}, 1e25f, "layer 0, experts"},
        Case{"Mlp", "deepseek_v3", {"layers.0.mlp."}, 1e25f, "layer 0, mlp"},
        Case{"FinalNorm", "mixtral", {"model.norm.weight"}, 3e38f, "final norm"},
        Case{"Output", "mixtral", {"lm_head"}, 3e38f, "the output layer"}),
    [](const auto& param) { return std::string(param.param.name); });

// Only one token is nonzero in the column whose norm overflows.
TEST(NonFiniteLogitsOfOneToken, FailRunAndNameToken) {
  SyntheticCheckpoint written = golden_model("mixtral");
  auto& table = written.tensors.at("model.embed_tokens.weight");
  auto& norm = written.tensors.at("model.layers.0.input_layernorm.weight");
  const int64_t hidden = table.shape[1];
  for (int64_t id = 0; id < table.shape[0]; ++id) put(table, id * hidden, id == 5 ? 10.0f : 0.0f);
  put(norm, 0, 3e38f);
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  for (const int64_t max_num_tokens : {512, 3}) {
    for (const std::string& message : failures(written, ids, max_num_tokens).generating) {
      EXPECT_EQ(message,
                "logits at position 7: needs finite numbers; layer 0, norm before attention gives "
                "the first NaN or infinity: inf at position 4");
    }
  }
}

}  // namespace
}  // namespace moracle::non_finite_test
