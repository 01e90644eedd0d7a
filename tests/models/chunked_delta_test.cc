// Whole models whose heads of gated DeltaNet are large enough for chunks: a prompt in one step
// gives what its tokens give one by one, which the tests of architectures compare with
// transformers.
#include <gtest/gtest.h>

#include "bench/random_model.h"
#include "golden_model.h"
#include "logit_bounds.h"
#include "models/decoder/model_state.h"
#include "support/device.h"
#include "support/model_words.h"
#include "support/must.h"

namespace moracle::chunked_delta_test {
namespace {

using testing::must;
using testing::relative_difference;

bench::ModelShape shape(bool by_key_head) {
  bench::ModelShape shape;
  shape.name = "2x128x64x2";  // each token goes to both experts
  shape.num_layers = 4;
  shape.vocab_size = 64;
  shape.max_context = 512;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 32;
  shape.head_norms = shape.renormalize = true;
  shape.delta = {2, 1, 2, 128, 128, 4, by_key_head};
  shape.partial_rotary_factor = 0.25;
  return shape;
}

struct On {
  std::string label, device;
};

class ChunkedDelta : public ::testing::TestWithParam<On> {
 protected:
  void SetUp() override {
    if (const auto opened = testing::open_test_device(GetParam().device); !opened)
      GTEST_SKIP() << opened.error().to_string();
  }
  Model load(bool by_key_head, bool deterministic) {
    const Scheme bf16{kBF16Weight, {}};
    bench::RandomModel random =
        must(bench::random_model(shape(by_key_head), {bf16, bf16, 4, int64_t{1} << 30}));
    ModelOptions options;
    options.device = testing::device(GetParam().device);
    options.threads = 2;
    options.deterministic = deterministic;
    options.max_num_tokens = kTokens;
    return must(ModelAccess::load(std::move(random.description), options, {}, random.bytes));
  }
  static std::vector<int32_t> ids() {
    std::vector<int32_t> ids(kTokens);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * i * 7 + 3 * i) % 61);
    return ids;
  }
  /// The logits of the last tokens, the prompt in steps of `each` tokens.
  static std::vector<float> last_logits(Model& model, int64_t each) {
    const std::vector<int32_t> all = ids();
    KvCache cache = must(model.make_cache(kTokens));
    std::vector<float> logits;
    for (int64_t at = 0; at < kTokens; at += each) {
      const int64_t count = std::min(each, kTokens - at);
      const Model::Step step{std::span(all).subspan(static_cast<size_t>(at), count), &cache};
      EXPECT_TRUE(model.forward({&step, 1}));
      const int64_t first = std::max<int64_t>(kTokens - kLast - at, 0);
      if (first >= count) continue;
      const std::span<const float> rows = must(model.logits(first, count - first));
      logits.insert(logits.end(), rows.begin(), rows.end());
    }
    return logits;
  }

  // Chunks are of 32 tokens on a CPU and of 64 on a GPU; the last one is not full.
  static constexpr int64_t kTokens = 150, kLast = 60;
};

TEST_P(ChunkedDelta, PromptInOneStepMatchesTokenByToken) {
  for (const bool by_key_head : {false, true}) {
    Model model = load(by_key_head, false);
    const std::vector<float> whole = last_logits(model, kTokens), single = last_logits(model, 1);
    ASSERT_EQ(whole.size(), static_cast<size_t>(kLast * 64));
    const double apart = relative_difference(whole, single);
    EXPECT_LT(apart, GetParam().device == "cpu"
                         ? testing::logit_bound(model.choices(), model.choices())
                         : 5e-2)
        << by_key_head;
    // Sums in another order: the step took chunks.
    EXPECT_GT(apart, 0) << by_key_head;
  }
}

TEST_P(ChunkedDelta, DeterministicModelRunsNoChunks) {
  Model model = load(false, true);
  EXPECT_EQ(last_logits(model, kTokens), last_logits(model, 1));
}

std::vector<On> devices() {
  return {
      {"Cpu", "cpu"},
#ifdef MORACLE_WITH_CUDA
      {"Cuda", "cuda"},
#endif
  };
}
INSTANTIATE_TEST_SUITE_P(Devices, ChunkedDelta, ::testing::ValuesIn(devices()),
                         [](const auto& tested) { return tested.param.label; });

}  // namespace
}  // namespace moracle::chunked_delta_test
