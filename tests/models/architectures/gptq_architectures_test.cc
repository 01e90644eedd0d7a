// Runs a hybrid model in GPTQ's int4: the tiny Qwen3-Next that llmcompressor quantized, with its
// codes stored as GPTQ stores them. The codes and scales are the same, so the logits are, too.
#include <gtest/gtest.h>

#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "device_architectures.h"
#include "models/logit_bounds.h"

namespace moracle::gptq_architectures_test {
namespace {

using testing::SyntheticCheckpoint;

const std::string kFolder = testing::golden_dir() + "/quantized/qwen3_next-w4a16";
constexpr int64_t kGroup = 128, kInWord = 8;

/// [rows, cols] of elements of `bytes` bytes, transposed.
std::vector<std::byte> transposed(const std::vector<std::byte>& from, int64_t rows, int64_t cols,
                                  int64_t bytes) {
  std::vector<std::byte> to(from.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c)
      std::memcpy(&to[(c * rows + r) * bytes], &from[(r * cols + c) * bytes], bytes);
  }
  return to;
}

/// Both producers add 8 to a code and put the lowest column into the lowest bits. GPTQ transposes
/// words and scales, and stores zero points less 1.
SyntheticCheckpoint as_gptq() {
  SyntheticCheckpoint checkpoint = testing::model_in(kFolder);
  checkpoint.config["quantization_config"] = {{"quant_method", "gptq"},
                                              {"bits", 4},
                                              {"group_size", kGroup},
                                              {"sym", true},
                                              {"desc_act", false}};
  const auto tensors = std::exchange(checkpoint.tensors, {});
  for (const auto& [name, tensor] : tensors) {
    constexpr std::string_view kPacked = ".weight_packed";
    if (name.ends_with(".weight_scale") || name.ends_with(".weight_shape")) continue;
    if (!name.ends_with(kPacked)) {
      checkpoint.tensors[name] = tensor;
      continue;
    }
    const std::string module = name.substr(0, name.size() - kPacked.size());
    const auto& scales = tensors.at(module + ".weight_scale");
    const int64_t n = tensor.shape[0], words = tensor.shape[1], groups = scales.shape[1];
    const auto put = [&](const char* part, DType dtype, std::vector<int64_t> shape,
                         std::vector<std::byte> bytes) {
      checkpoint.tensors[module + part] = {module + part, dtype, std::move(shape),
                                           std::move(bytes)};
    };
    put(".qweight", DType::kI32, {words, n}, transposed(tensor.bytes, n, words, 4));
    put(".scales", scales.dtype, {groups, n}, transposed(scales.bytes, n, groups, 2));
    put(".qzeros", DType::kI32, {groups, n / kInWord},
        std::vector<std::byte>(groups * n / kInWord * 4, std::byte{0x77}));
    std::vector<std::byte> group_of(words * kInWord * 4);
    for (int64_t c = 0; c < words * kInWord; ++c) {
      const auto group = static_cast<int32_t>(c / kGroup);
      std::memcpy(&group_of[c * 4], &group, 4);
    }
    put(".g_idx", DType::kI32, {words * kInWord}, std::move(group_of));
  }
  return checkpoint;
}

TEST(GptqArchitectures, HybridModelMatchesLlmcompressor) {
  const testing::GoldenReference want = testing::reference_in(kFolder);
  const auto got = testing::all_logits(as_gptq(), want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(testing::relative_difference(*got, want.logits), testing::kCloseInF32) << "row cpu";
}

TEST(GptqArchitectures, HybridModelMatchesLlmcompressorOnOpenCl) {
  const testing::TemporaryFolder folder;
  ASSERT_TRUE(as_gptq().write(folder.path()).ok());
  testing::expect_model_matches(folder.path(), testing::reference_in(kFolder),
                                testing::opencl_name());
}

}  // namespace
}  // namespace moracle::gptq_architectures_test
