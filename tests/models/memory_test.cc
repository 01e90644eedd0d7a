// Tests the peak memory of loading: the packed weights, one expert and a small rest. The file is
// much larger than the bound. Keeping the source or a second copy fails the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/text.h"
#include "checkpoint/safetensors_writer.h"
#include "moracle/moracle.h"
#include "support/model_words.h"
#include "support/temporary_folder.h"

namespace moracle::memory_test {
namespace {

constexpr int64_t kHidden = 1024, kIntermediate = 512, kExperts = 32, kLayers = 3,
                  kVocabulary = 512;
constexpr int64_t kHeads = 4, kHeadDim = 64;

// One line of /proc/self/status in bytes. VmHWM is the peak; VmRSS is the current size.
int64_t memory(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

// Bytes that are valid in every dtype used here: small bf16 and f16 numbers, any code.
void fill(std::span<std::byte> slice, size_t first) {
  for (size_t i = 0; i < slice.size(); ++i) {
    slice[i] = (first + i) % 2 == 0 ? static_cast<std::byte>((first + i) * 7) : std::byte{0x3c};
  }
}
void fill_zeros(std::span<std::byte> slice, size_t) {
  std::memset(slice.data(), 0, slice.size());
}
void fill_middle(std::span<std::byte> slice, size_t) {
  std::memset(slice.data(), 0x77, slice.size());
}

struct Linear {
  std::string module;
  int64_t n, k;
};

std::vector<Linear> linears() {
  std::vector<Linear> all;
  for (int64_t l = 0; l < kLayers; ++l) {
    const std::string layer = str("model.layers.", l, "."), attention = layer + "self_attn.";
    for (const char* p : {"q", "k", "v"})
      all.push_back({attention + p + "_proj", kHeads * kHeadDim, kHidden});
    all.push_back({attention + "o_proj", kHidden, kHeads * kHeadDim});
    for (int64_t e = 0; e < kExperts; ++e) {
      const std::string expert = str(layer, "mlp.experts.", e, ".");
      all.push_back({expert + "gate_proj", kIntermediate, kHidden});
      all.push_back({expert + "up_proj", kIntermediate, kHidden});
      all.push_back({expert + "down_proj", kHidden, kIntermediate});
    }
  }
  return all;
}

using testing::TensorStream;

std::vector<TensorStream> tensors(bool gptq) {
  std::vector<TensorStream> all;
  auto add = [&](std::string name, DType dtype, std::vector<int64_t> shape, auto how) {
    all.push_back({std::move(name), dtype, std::move(shape), how});
  };
  for (const Linear& linear : linears()) {
    if (!gptq) {
      add(linear.module + ".weight", DType::kBF16, {linear.n, linear.k}, fill);
      continue;
    }
    add(linear.module + ".qweight", DType::kI32, {linear.k / 8, linear.n}, fill);
    add(linear.module + ".qzeros", DType::kI32, {1, linear.n / 8}, fill_middle);
    add(linear.module + ".scales", DType::kF16, {1, linear.n}, fill);
    add(linear.module + ".g_idx", DType::kI32, {linear.k}, fill_zeros);
  }
  for (int64_t l = 0; l < kLayers; ++l) {
    const std::string layer = str("model.layers.", l, ".");
    add(layer + "mlp.gate.weight", DType::kBF16, {kExperts, kHidden}, fill);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
      add(layer + norm + ".weight", DType::kBF16, {kHidden}, fill);
    }
    for (const char* norm : {"q_norm", "k_norm"}) {
      add(layer + "self_attn." + norm + ".weight", DType::kBF16, {kHeadDim}, fill);
    }
  }
  add("model.norm.weight", DType::kBF16, {kHidden}, fill);
  add("model.embed_tokens.weight", DType::kBF16, {kVocabulary, kHidden}, fill);
  add("lm_head.weight", DType::kBF16, {kVocabulary, kHidden}, fill);
  return all;
}

struct Source {
  const char* name;
  bool gptq;
  const char* quantization;
};
void PrintTo(const Source& source, std::ostream* out) {
  *out << source.name;
}
class LoadingMemory : public ::testing::TestWithParam<Source> {};

TEST_P(LoadingMemory, StaysWithinPackedSizePlusOneExpertPlusTenPercent) {
#if defined(MORACLE_SANITIZED)
  GTEST_SKIP() << "a sanitizer's own memory hides what is measured";
#endif
  const bool gptq = GetParam().gptq;
  const testing::TemporaryFolder folder;
  const std::string config = str(
      R"({"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": )", kLayers,
      R"(, "hidden_size": )", kHidden, R"(, "moe_intermediate_size": )", kIntermediate,
      R"(, "num_experts": )", kExperts, R"(, "num_experts_per_tok": 2, "num_attention_heads": )",
      kHeads, R"(, "head_dim": )", kHeadDim, R"(, "vocab_size": )", kVocabulary,
      gptq ? R"(, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": -1})"
           : "",
      "}");
  folder.write("config.json", config);
  const Status written =
      testing::write_safetensors(folder.path() + "/model.safetensors", tensors(gptq));
  ASSERT_TRUE(written) << written.error().to_string();

  ModelOptions options;
  options.quantization = testing::quantization(GetParam().quantization);
  options.threads = 2;
  options.max_num_tokens = 1;
  static_cast<void>(Machine::here());  // loads drivers of OpenCL, which are not measured
  const int64_t before = memory("VmRSS:");
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak counts from here
  auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  auto model = Model::load(*checkpoint, options);
  const int64_t peak = memory("VmHWM:") - before;
  ASSERT_TRUE(model) << model.error().to_string();

  const int64_t packed = model->weight_bytes();
  const int64_t expert = packed / (kLayers * kExperts);
  EXPECT_LE(peak, (packed + expert) * 11 / 10)
      << "packed " << packed << ", one expert about " << expert << ", in the file "
      << checkpoint->total_bytes();
  RecordProperty("peak_over_packed",
                 std::to_string(static_cast<double>(peak) / static_cast<double>(packed)));
  std::printf("peak %.1f MB, packed %.1f MB, file %.1f MB\n", peak / 1e6, packed / 1e6,
              static_cast<double>(checkpoint->total_bytes()) / 1e6);
}

INSTANTIATE_TEST_SUITE_P(Producers, LoadingMemory,
                         ::testing::Values(Source{"plain", false, ""}, Source{"gptq", true, ""},
                                           Source{"online_int8", false, "int8-per-channel"},
                                           Source{"online_fp8_tensor", false, "fp8-per-tensor"},
                                           Source{"online_fp8_block", false, "fp8-per-block"},
                                           Source{"online_mxfp8", false, "mxfp8"}),
                         [](const auto& source) { return std::string(source.param.name); });

}  // namespace
}  // namespace moracle::memory_test
