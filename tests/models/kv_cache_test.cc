// Tests caches of 16 and 8 bits: less memory, and the same model within cache rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/median.h"
#include "base/text.h"
#include "models/decoder/model_state.h"
#include "models/golden_model.h"
#include "paths.h"
#include "support/model_words.h"
#include "support/must.h"
#include "support/sample.h"

namespace moracle::kv_cache_test {
namespace {

using testing::all_logits;
using testing::golden_folder;
using testing::golden_reference;
using ::testing::HasSubstr;

const std::string kSmallModel = testing::models_dir() + "/qwen3moe-gptq-int4-g128";

Model must_load(const Checkpoint& checkpoint, const std::string& kv_cache) {
  ModelOptions options;
  options.kv_cache = testing::must(parse_kv_cache(kv_cache));
  options.threads = 2;
  return testing::must(Model::load(checkpoint, options));
}

// The median of the tokens' differences: a router that chooses another expert changes a token's
// logits by far more than rounding does.
double typical_difference(const std::vector<float>& got, const std::vector<float>& want,
                          size_t tokens) {
  const auto vocabulary = static_cast<std::ptrdiff_t>(want.size() / tokens);
  std::vector<double> each;
  for (auto at = std::ptrdiff_t{0}; at < std::ssize(want); at += vocabulary) {
    each.push_back(
        testing::relative_difference({got.begin() + at, got.begin() + at + vocabulary},
                                     {want.begin() + at, want.begin() + at + vocabulary}));
  }
  return median(std::move(each));
}

// Both models run on the same backend, so the rounding of e4m3 keys and values decides on every
// CPU.
constexpr double kFp8Bound = 4e-1;

// Grouped queries, sinks and windows, latent attention.
TEST(NarrowKvCache, LogitsOfEveryArchitectureStayWithinRounding) {
  for (const std::string& architecture :
       testing::sample_of(testing::golden_models(), "NarrowKvCache")) {
    const auto reference = golden_reference(architecture);
    const Checkpoint checkpoint = *Checkpoint::open(golden_folder(architecture));
    const auto logits = [&](const char* kv_cache) {
      Model model = must_load(checkpoint, kv_cache);
      return *all_logits(model, reference.ids);
    };
    const std::vector<float> exact = logits("f32");
    const double f16 = testing::relative_difference(logits("f16"), exact),
                 bf16 = testing::relative_difference(logits("bf16"), exact);
    const double int8 = typical_difference(logits("int8"), exact, reference.ids.size()),
                 fp8 = typical_difference(logits("fp8"), exact, reference.ids.size());
    std::printf("%s: f16 %.1e, bf16 %.1e, int8 %.1e, fp8 %.1e of the logits\n",
                architecture.c_str(), f16, bf16, int8, fp8);
    EXPECT_GT(bf16, 0);
    EXPECT_LT(f16, 4e-3) << architecture;
    EXPECT_LT(bf16, 3e-2) << architecture;
    EXPECT_GT(int8, 0);
    EXPECT_LT(int8, 4e-2) << architecture;
    EXPECT_GT(fp8, 0);
    EXPECT_LT(fp8, kFp8Bound) << architecture;
  }
}

// A golden model whose file holds scales for every layer's keys and values.
testing::SyntheticCheckpoint with_scales(const std::string& architecture, float keys,
                                         float values) {
  testing::SyntheticCheckpoint model = testing::golden_model(architecture);
  const auto layers = model.config["num_hidden_layers"].get<int64_t>();
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string attention = str("model.layers.", layer, ".self_attn.");
    model.add(attention + "k_scale", DType::kF32, {}, std::vector<float>{keys});
    model.add(attention + "v_scale", DType::kF32, {1}, std::vector<float>{values});
  }
  return model;
}
std::vector<float> logits_of(const testing::SyntheticCheckpoint& written,
                             const std::string& kv_cache, const std::vector<int32_t>& ids) {
  Model model = must_load(testing::must(written.open()), kv_cache);
  return *all_logits(model, ids);
}

// Powers of two keep the codes of most numbers, and those of smaller ones become finer. A scale
// that is too small cuts keys and values off. Grouped queries, sinks and windows, latent attention.
TEST(NarrowKvCache, Fp8UsesScalesOfTheFile) {
  for (const char* architecture : {"qwen3_moe", "gpt_oss", "deepseek_v3"}) {
    const auto reference = golden_reference(architecture);
    const auto logits = [&](float keys, float values, const char* kv_cache) {
      return logits_of(with_scales(architecture, keys, values), kv_cache, reference.ids);
    };
    const std::vector<float> exact = logits(0.0625f, 0.125f, "f32");
    EXPECT_EQ(exact, logits_of(testing::golden_model(architecture), "f32", reference.ids));
    EXPECT_EQ(logits(1, 1, "fp8"),
              logits_of(testing::golden_model(architecture), "fp8", reference.ids));
    const auto off = [&](const std::vector<float>& got) {
      return typical_difference(got, exact, reference.ids.size());
    };
    const double plain = off(logits(1, 1, "fp8")), fine = off(logits(0.0625f, 0.03125f, "fp8")),
                 cut_keys = off(logits(0x1p-14f, 1, "fp8")),
                 cut_values = off(logits(1, 0x1p-14f, "fp8"));
    std::printf("%s: fp8 %.1e, with scales %.1e, cut off %.1e and %.1e of the logits\n",
                architecture, plain, fine, cut_keys, cut_values);
    EXPECT_NE(fine, plain);
    EXPECT_LT(fine, kFp8Bound);
    EXPECT_GT(cut_keys, fine);
    EXPECT_GT(cut_values, fine);
  }
}

TEST(NarrowKvCache, ReloadTakesScalesOfTheNewFile) {
  const auto reference = golden_reference("qwen3_moe");
  const auto before = with_scales("qwen3_moe", 0.5f, 0.5f),
             after = with_scales("qwen3_moe", 0x1p-9f, 0x1p-9f);
  Model model = must_load(testing::must(before.open()), "fp8");
  const std::vector<float> first = *all_logits(model, reference.ids);
  ASSERT_TRUE(model.reload(testing::must(after.open())));
  const std::vector<float> second = *all_logits(model, reference.ids);
  EXPECT_NE(second, first);
  EXPECT_EQ(second, logits_of(after, "fp8", reference.ids));
}

TEST(NarrowKvCache, KeepsPerplexity) {
  const auto checkpoint = Checkpoint::open(kSmallModel);
  if (!checkpoint) GTEST_SKIP() << "the small model is not there";
  const Tokenizer tokenizer = *Tokenizer::open(kSmallModel);
  const std::vector<int32_t> ids = *tokenizer.encode(
      "In the beginning God created the heaven and the earth. And the earth was without form, and "
      "void; and darkness was upon the face of the deep. And the Spirit of God moved upon the face "
      "of the waters. And God said, Let there be light: and there was light. And God saw the "
      "light, that it was good: and God divided the light from the darkness. And God called the "
      "light Day, and the darkness he called Night. And the evening and the morning were the "
      "first day.");
  const auto measured = [&](const char* kv_cache) {
    Model model = must_load(*checkpoint, kv_cache);
    return perplexity(model, ids, 512)->perplexity;
  };
  const double f32 = measured("f32"), bf16 = measured("bf16"), f16 = measured("f16"),
               int8 = measured("int8"), fp8 = measured("fp8");
  std::printf("perplexity f32 %.4f, bf16 %.4f, f16 %.4f, int8 %.4f, fp8 %.4f\n", f32, bf16, f16,
              int8, fp8);
  EXPECT_NEAR(bf16 / f32, 1, 5e-3);
  EXPECT_NEAR(f16 / f32, 1, 1e-3);
  EXPECT_NEAR(int8 / f32, 1, 5e-3);
  EXPECT_NEAR(fp8 / f32, 1, 2e-2);
}

TEST(NarrowKvCache, PlansItsMemory) {
  const Checkpoint checkpoint = *Checkpoint::open(golden_folder("deepseek_v3"));
  const auto of = [&](const char* kv_cache) {
    ModelOptions options;
    options.kv_cache = testing::must(parse_kv_cache(kv_cache));
    return *plan(checkpoint, options);
  };
  const ModelPlan f32 = of("f32"), bf16 = of("bf16"), int8 = of("int8"), fp8 = of("fp8");
  EXPECT_EQ(f32.cache_bytes_per_token, 2 * bf16.cache_bytes_per_token);
  EXPECT_EQ(f32.cache_bytes_per_token, 4 * fp8.cache_bytes_per_token);
  EXPECT_EQ(bf16.cache_dtype, DType::kBF16);
  EXPECT_EQ(fp8.cache_dtype, DType::kF8E4M3);
  EXPECT_EQ(int8.cache_dtype, DType::kI8);
  EXPECT_EQ(bf16.total_bytes(), f32.total_bytes());
}

TEST(NarrowKvCache, RejectsTypeThatNoCacheHas) {
  EXPECT_THAT(parse_kv_cache("int4").error().to_string(),
              HasSubstr("kv_cache: needs auto, f32, bf16, f16, int8 or fp8; it is 'int4'"));
  const Checkpoint checkpoint = *Checkpoint::open(golden_folder("deepseek_v3"));
  ModelOptions wrong;
  wrong.kv_cache = DType::kI32;
  for (const Error& error :
       {plan(checkpoint, wrong).error(), Model::load(checkpoint, wrong).error()})
    EXPECT_THAT(error.to_string(),
                HasSubstr("kv_cache: needs f32, bf16, f16, i8 or f8_e4m3; it is i32"));
}

// Heads of 64 columns: 64 codes and a scale of 4 bytes, for keys and for values.
TEST(NarrowKvCache, Int8HasScalePerTokenAndHead) {
  const auto checkpoint = Checkpoint::open(kSmallModel);
  if (!checkpoint) GTEST_SKIP() << "the small model is not there";
  ModelOptions options;
  options.kv_cache = DType::kI8;
  const int64_t layers = 3, kv_heads = 2;
  EXPECT_EQ(plan(*checkpoint, options)->cache_bytes_per_token, layers * kv_heads * 2 * (64 + 4));
}

TEST(NarrowKvCache, RefusesTypeWithoutKernelsOnDevice) {
  const Checkpoint checkpoint = *Checkpoint::open(golden_folder("qwen3_moe"));
  const auto refused = [&](const char* device, const char* machine, const char* kv_cache) {
    ModelOptions options;
    options.device = testing::device(device);
    options.kv_cache = testing::must(parse_kv_cache(kv_cache));
    const auto planned = plan(checkpoint, options, testing::must(Machine::find(machine)));
    return planned ? std::string() : planned.error().to_string();
  };
  EXPECT_EQ(refused("cuda", "h200", "fp8"), "");
  EXPECT_THAT(refused("cuda", "h200", "int8"),
              HasSubstr("kv_cache: needs a CPU for int8, because other devices have no kernels "
                        "that read its scales; the device is of the kind cuda"));
}

// A truncated sequence repeats the bits of the first time, also where codes of two positions share
// memory, and a sequence that shares pages has the bits of one that computed them.
TEST(NarrowKvCache, TruncatedAndSharedSequencesKeepTheirBits) {
  const auto checkpoint = Checkpoint::open(kSmallModel);
  if (!checkpoint) GTEST_SKIP() << "the small model is not there";
  for (const char* kv_cache : {"int8", "fp8"}) {
    ModelOptions options;
    options.kv_cache = testing::must(parse_kv_cache(kv_cache));
    options.threads = 2;
    options.deterministic = true;
    Model model = testing::must(Model::load(*checkpoint, options));
    std::vector<int32_t> ids(300);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(7 + i * 31 % 900);
    const auto last_logits = [&](KvCache& cache, std::span<const int32_t> tokens) {
      const Model::Step step{tokens, &cache};
      EXPECT_TRUE(model.forward({&step, 1}));
      const auto logits = *model.logits(static_cast<int64_t>(tokens.size()) - 1, 1);
      return std::vector<float>(logits.begin(), logits.end());
    };
    const std::span<const int32_t> all(ids);
    KvCache cache = *model.make_cache(400);
    const std::vector<float> want = last_logits(cache, all);
    for (const int64_t length : {299, 256, 131, 0}) {
      ASSERT_TRUE(cache.truncate(length));
      const std::vector<int32_t> other = {5, 6, 7};  // overwritten again
      if (length > 0) last_logits(cache, other);
      ASSERT_TRUE(cache.truncate(length));
      EXPECT_EQ(last_logits(cache, all.subspan(length)), want) << kv_cache << " from " << length;
    }
    const std::vector<std::byte*> first_page = {ModelAccess::state(cache).pages[0]};
    KvCache sharing = *ModelAccess::make_cache(model, 400, first_page);
    ASSERT_EQ(sharing.length(), 256);
    EXPECT_EQ(last_logits(sharing, all.subspan(256)), want) << kv_cache << ", shared";
  }
}

TEST(NarrowKvCache, GeneratesBeforeAndAfterReload) {
  const Checkpoint checkpoint = *Checkpoint::open(golden_folder("qwen3_moe"));
  for (const char* kv_cache : {"bf16", "int8", "fp8"}) {
    Model model = must_load(checkpoint, kv_cache);
    const std::vector<int32_t> prompt = {1, 2, 3, 4};
    GenerateOptions options;
    options.max_tokens = 8;
    const auto first = generate(model, prompt, options);
    ASSERT_TRUE(first) << first.error().to_string();
    EXPECT_EQ(first->ids.size(), 8u);
    ASSERT_TRUE(model.reload(checkpoint));
    EXPECT_EQ(generate(model, prompt, options)->ids, first->ids);
  }
}

// The error names the number of the step, and nothing changes.
class ForwardSteps : public ::testing::Test {
 protected:
  void expect_refused(std::span<const Model::Step> steps, const char* message) {
    const Status refused = model_.forward(steps);
    ASSERT_FALSE(refused) << message;
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_EQ(refused.error().to_string(), message);
    EXPECT_EQ(cache_.length(), 0);
    const Model::Step good{ids_, &cache_};
    ASSERT_TRUE(model_.forward({&good, 1}));
    EXPECT_THAT(*model_.logits(1, 1), ::testing::ElementsAreArray(alone()));
    ASSERT_TRUE(cache_.truncate(0));
  }
  std::vector<float> alone() {
    const std::vector<float> all = *all_logits(other_, ids_);
    return {all.end() - model_.vocab_size(), all.end()};
  }

  const Checkpoint checkpoint_ = *Checkpoint::open(golden_folder("qwen3_moe"));
  Model model_ = must_load(checkpoint_, "f32"), other_ = must_load(checkpoint_, "f32");
  KvCache cache_ = *model_.make_cache(8);
  const std::vector<int32_t> ids_ = {1, 2};
};

TEST_F(ForwardSteps, RejectCacheOfAnotherModel) {
  KvCache foreign = *other_.make_cache(8), own = *model_.make_cache(8);
  const Model::Step steps[] = {{ids_, &own}, {ids_, &foreign}};
  expect_refused(steps, "step 1, cache: needs a cache of this model; another model made it");
  Model bf16 = must_load(checkpoint_, "bf16");
  KvCache rounded = *bf16.make_cache(8);
  const Model::Step step{ids_, &rounded};
  expect_refused({&step, 1}, "step 0, cache: needs a cache of this model; another model made it");
}

TEST_F(ForwardSteps, RejectOneCacheTwice) {
  KvCache own = *model_.make_cache(8);
  const Model::Step steps[] = {{ids_, &cache_}, {ids_, &own}, {ids_, &cache_}};
  expect_refused(
      steps,
      "step 2, cache: needs a cache that no other step of this call uses; an earlier step uses it");
}

TEST_F(ForwardSteps, RejectMissingCache) {
  const Model::Step none{ids_, nullptr};
  expect_refused({&none, 1}, "step 0, cache: needs a cache from make_cache; it is null");
  KvCache own = *model_.make_cache(8);
  const KvCache moved = std::move(own);
  const Model::Step gone{ids_, &own};
  expect_refused({&gone, 1}, "step 0, cache: needs a cache from make_cache; it is null");
}

TEST_F(ForwardSteps, NameStepOfUnknownToken) {
  KvCache own = *model_.make_cache(8);
  const std::vector<int32_t> wrong = {1, -7};
  const Model::Step steps[] = {{ids_, &own}, {wrong, &cache_}};
  expect_refused(
      steps, str("step 1, token id: needs 0 to ", model_.vocab_size() - 1, "; it is -7").c_str());
}

TEST_F(ForwardSteps, AcceptStepsWithoutTokens) {
  EXPECT_TRUE(model_.forward({}));
  EXPECT_FALSE(model_.logits(0, 1)) << "no token has logits";
  KvCache first = *model_.make_cache(8), last = *model_.make_cache(8);
  const Model::Step steps[] = {{{}, &first}, {ids_, &cache_}, {{}, &last}};
  ASSERT_TRUE(model_.forward(steps));
  EXPECT_EQ(first.length(), 0);
  EXPECT_EQ(cache_.length(), 2);
  EXPECT_EQ(last.length(), 0);
  EXPECT_THAT(*model_.logits(1, 1), ::testing::ElementsAreArray(alone()));
  const Model::Step nothing{{}, &cache_};
  EXPECT_TRUE(model_.forward({&nothing, 1}));
  EXPECT_EQ(cache_.length(), 2);
}

// Two sequences share page memory for one and a half.
TEST(KvCachePages, ExhaustionIsAnErrorAndKeepsContent) {
  const Checkpoint checkpoint = *Checkpoint::open(golden_folder("qwen3_moe"));
  ModelOptions options;
  options.threads = 2;
  Model whole = *Model::load(checkpoint, options);
  const int64_t page = static_cast<int64_t>(ModelAccess::state(whole).cache_pool->page_bytes());
  options.cache_bytes = page + page / 2;
  Model model = *Model::load(checkpoint, options);
  KvCache first = *model.make_cache(16), second = *model.make_cache(16);
  const std::vector<int32_t> ids = {1, 2, 3};
  const Model::Step one{ids, &first}, both[] = {{ids, &first}, {ids, &second}};
  ASSERT_TRUE(model.forward({&one, 1}));
  const Status refused = model.forward(both);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_THAT(refused.error().to_string(),
              HasSubstr(str("the limit of ", options.cache_bytes, " bytes leaves 0")));
  EXPECT_EQ(first.length(), 3);
  EXPECT_EQ(second.length(), 0);
  // The first sequence continues unaffected and then releases its memory.
  ASSERT_TRUE(model.forward({&one, 1}));
  const auto got = model.logits(2, 1);
  ASSERT_TRUE(got);
  KvCache other = *whole.make_cache(16);
  const Model::Step same{ids, &other};
  ASSERT_TRUE(whole.forward({&same, 1}));
  ASSERT_TRUE(whole.forward({&same, 1}));
  EXPECT_THAT(*got, ::testing::ElementsAreArray(*whole.logits(2, 1)));
  ASSERT_TRUE(first.truncate(0));
  const Model::Step next{ids, &second};
  EXPECT_TRUE(model.forward({&next, 1}));
}

}  // namespace
}  // namespace moracle::kv_cache_test
