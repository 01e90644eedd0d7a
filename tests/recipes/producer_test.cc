// producer.patch adds the reader of an imaginary tool's files, quant_method "acme-int8".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "checkpoint/synthetic_checkpoint.h"
#include "cli/run_command.h"
#include "moracle/moracle.h"
#include "quant/codec.h"

namespace moracle::testing {
namespace {

using ::testing::HasSubstr;

/// Every linear layer but the router and the output as the tool writes it; scales are 1/256 · row.
SyntheticCheckpoint acme() {
  SyntheticCheckpoint checkpoint = SyntheticCheckpoint::plain();
  checkpoint.config["quantization_config"] = {{"quant_method", "acme-int8"},
                                              {"keep_float", {"lm_head"}}};
  for (const auto& [name, tensor] : std::map(checkpoint.tensors)) {
    if (name.find("_proj.weight") == name.npos) continue;
    const std::string module = name.substr(0, name.size() - 7);
    const int64_t n = tensor.shape[0], k = tensor.shape[1];
    std::vector<int8_t> codes(n * k);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<int8_t>(7 * i + name.size());
    std::vector<float> scales(n);
    for (int64_t r = 0; r < n; ++r) scales[r] = static_cast<float>(r + 1) / 4096;
    checkpoint.remove(name);
    checkpoint.add(module + ".weight_int8", DType::kI8, {n, k}, codes);
    checkpoint.add(module + ".row_scale", DType::kF32, {n}, scales);
  }
  return checkpoint;
}

TEST(Producer, ReadsExactly) {
  const SyntheticCheckpoint checkpoint = acme();
  const auto experts = checkpoint.experts(1);
  ASSERT_TRUE(experts) << experts.error().to_string();
  EXPECT_EQ(name(experts->spec.scheme), "int8-w8a16-channel");
  for (int64_t e = 0; e < experts->spec.num_experts; ++e) {
    const auto down = experts->w2.expert(e);
    ASSERT_TRUE(down) << down.error().to_string();
    const std::string codes = SyntheticCheckpoint::expert(1, e, "down_proj.weight_int8");
    std::vector<double> row(down->k);
    for (int64_t r = 0; r < down->n; ++r) {
      dequantize_row(*down, r, row.data());
      for (int64_t c = 0; c < down->k; ++c) {
        const double code = checkpoint.get<int8_t>(codes, r * down->k + c);
        ASSERT_EQ(row[c], code * static_cast<double>(r + 1) / 4096) << e << ", " << r << ", " << c;
      }
    }
  }
}

TEST(Producer, RunsItsModel) {
  const auto checkpoint = acme().open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  auto model = Model::load(*checkpoint, {.threads = 1});
  ASSERT_TRUE(model) << model.error().to_string();
  const auto generated = generate(*model, std::vector<int32_t>{1, 2, 3}, {.max_tokens = 4});
  ASSERT_TRUE(generated) << generated.error().to_string();
  EXPECT_EQ(generated->ids.size(), 4u);
}

TEST(Producer, IsNamedByInspect) {
  const TemporaryFolder folder;
  ASSERT_TRUE(acme().write(folder.path()));
  const Ran ran = run_command({"inspect", folder.path()});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("acme-int8"));
  EXPECT_THAT(ran.out, HasSubstr("int8-w8a16-channel"));
}

TEST(Producer, RejectsWrongFileByName) {
  SyntheticCheckpoint checkpoint = acme();
  const std::string scale = SyntheticCheckpoint::expert(0, 2, "up_proj.row_scale");
  checkpoint.reshape(scale, {15});
  const auto experts = checkpoint.experts();
  ASSERT_FALSE(experts);
  EXPECT_THAT(experts.error().to_string(), HasSubstr(scale));
  checkpoint.remove(scale);
  EXPECT_THAT(checkpoint.experts().error().to_string(), HasSubstr(scale));
}

}  // namespace
}  // namespace moracle::testing
