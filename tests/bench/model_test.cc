// Tests the decode step of a random model: every part has a time, and the times add up.
#include "bench/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/try.h"
#include "bench/bench.h"
#include "oracle/backend.h"
#include "paths.h"
#include "support/model_words.h"
#include "support/must.h"

namespace moracle::bench::model_test {
namespace {

using ::testing::HasSubstr;

ModelShape small_shape() {
  ModelShape shape;
  shape.name = "8x64x32x2";
  shape.num_layers = 6;
  shape.vocab_size = 96;
  shape.max_context = 64;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 16;
  shape.head_norms = true;
  return shape;
}

DecodeOptions small_options() {
  DecodeOptions options;
  options.context = 20;
  options.seconds = 0.01;
  options.model.threads = 2;
  return options;
}

RandomModelOptions weights(std::string_view scheme) {
  RandomModelOptions options;
  options.scheme = *parse_scheme(scheme);
  options.most_bytes = 1 << 30;
  return options;
}

Result<Decode> decode_one(const ModelShape& shape, const RandomModelOptions& weights,
                          const DecodeOptions& options = small_options()) {
  MORACLE_TRY(const std::vector<Decode> all, decode(shape, weights, options));
  return all.front();
}

TEST(BenchModel, TimesEveryPartOfAStep) {
  for (const char* scheme : {"int8-w8a8", "int4-w4a16-g32", "mxfp4-w4a16", "bf16"}) {
    const Result<Decode> result = decode_one(small_shape(), weights(scheme));
    ASSERT_TRUE(result) << result.error().to_string();
    EXPECT_EQ(result->num_layers, 2);
    EXPECT_EQ(result->all_layers, 6);
    EXPECT_GE(result->steps, 3);
    EXPECT_GT(result->us_min, 0);
    EXPECT_LE(result->us_min, result->us_median);
    double per_layer = 0, once = 0;
    std::vector<std::string> parts;
    for (const DecodePart& part : result->parts) {
      parts.push_back(part.name);
      EXPECT_GT(part.us, 0) << part.name;
      (part.per_layer ? per_layer : once) += part.us;
    }
    EXPECT_THAT(parts, ::testing::ElementsAre("norms", "attention linears", "attention", "router",
                                              "experts", "embedding", "output", "sampling"));
    EXPECT_NEAR(result->us_all_layers(), per_layer * 3 + once, 1e-6 * result->us_all_layers());
    EXPECT_GT(result->weight_bytes, 0);
  }
}

// Parts that only GPT-OSS and DeepSeek-V3 have: biases, sinks, a window; latent attention, a shared
// expert.
TEST(BenchModel, TimesDecodersOfOtherArchitectures) {
  ModelShape windowed = small_shape();
  windowed.biases = windowed.sinks = true;
  windowed.window = 8;
  windowed.score = Score::kTopkThenSoftmax;
  ModelShape latent = small_shape();
  latent.score = Score::kSigmoid;
  latent.latent = {24, 32, 16, 8, 16};
  latent.shared_size = 48;
  for (const ModelShape& shape : {windowed, latent}) {
    const Result<Decode> result = decode_one(shape, weights("fp8-w8a8-block128x128"));
    ASSERT_TRUE(result) << result.error().to_string();
    const auto us = [&](std::string_view name) {
      for (const DecodePart& part : result->parts) {
        if (part.name == name) return part.us;
      }
      return 0.0;
    };
    for (const char* part : {"attention linears", "attention", "router", "experts"})
      EXPECT_GT(us(part), 0) << part;
    EXPECT_EQ(us("shared expert") > 0, shape.shared_size > 0);
  }
}

// Qwen3-Next's parts: gated DeltaNet in three of four layers, gates in the others.
TEST(BenchModel, TimesHybridDecoders) {
  for (const bool by_key_head : {false, true}) {
    ModelShape shape = small_shape();
    shape.num_layers = 8;
    shape.delta = {4, 2, 4, 16, 16, 4, by_key_head};
    shape.partial_rotary_factor = 0.25;
    shape.shared_size = 48;
    shape.shared_gate = true;
    RandomModelOptions random = weights("int4-w4a16-g32");
    DecodeOptions options = small_options();
    options.batches = {1, 2};
    options.prompt = 24;
    EXPECT_THAT(decode_one(shape, random, options).error().to_string(),
                HasSubstr("num_layers: needs a multiple of 4 layers"));
    random.num_layers = 4;
    const auto results = decode(shape, random, options);
    ASSERT_TRUE(results) << results.error().to_string();
    for (const Decode& one : *results) {
      EXPECT_GE(one.steps, 3);
      EXPECT_GT(one.us_prompt, 0);
      EXPECT_EQ(one.all_layers, 8);
    }
  }
}

// transformers' config classes and config.json of Qwen3-Next-80B-A3B and Qwen3.6-35B-A3B.
TEST(BenchModel, HybridShapesMatchPublishedConfigs) {
  const ModelShape next = *find_model("qwen3-next-80b-a3b"), qwen = *find_model("qwen3.6-35b-a3b");
  EXPECT_EQ(next.num_layers, 48);
  EXPECT_EQ(qwen.num_layers, 40);
  EXPECT_EQ(find_shape(next.name)->num_experts, 512);
  EXPECT_EQ(find_shape(next.name)->top_k, 10);
  EXPECT_EQ(find_shape(qwen.name)->num_experts, 256);
  for (const ModelShape& shape : {next, qwen}) {
    EXPECT_EQ(shape.delta.num_key_heads * shape.delta.key_dim, 2048);
    EXPECT_EQ(shape.delta.num_value_heads * shape.delta.value_dim, 4096);
    EXPECT_EQ(shape.num_layers % shape.delta.interval, 0);
  }
}

// config.json of Qwen3-235B-A22B.
TEST(BenchModel, LargeShapeMatchesPublishedConfig) {
  const ModelShape model = *find_model("qwen3-235b-a22b");
  const LayerShape experts = *find_shape(model.name);
  EXPECT_EQ(model.num_layers, 94);
  EXPECT_EQ(model.num_heads * model.head_dim, 8192);
  EXPECT_EQ(model.num_kv_heads, 4);
  EXPECT_EQ(experts.hidden_size, 4096);
  EXPECT_EQ(experts.top_k, 8);
  const int64_t of_layer =
      3 * experts.num_experts * experts.hidden_size * experts.intermediate_size;
  EXPECT_EQ(model.num_layers * of_layer, 227'096'395'776) << "of 235e9 weights";
}

// A folder, and a file of GGUF with two schemes in one layer.
TEST(BenchModel, TimesCheckpoints) {
  for (const char* path : {"quantized/qwen3_moe-w4a16", "gguf/models/qwen3moe.gguf"}) {
    SCOPED_TRACE(path);
    const Checkpoint checkpoint =
        testing::must(Checkpoint::open(testing::golden_dir() + "/" + path));
    DecodeOptions options = small_options();
    options.context = 8;
    options.prompt = 16;
    options.batches = {1, 2};
    const auto results = decode(checkpoint, options);
    ASSERT_TRUE(results) << results.error().to_string();
    for (const Decode& one : *results) {
      EXPECT_EQ(one.num_layers, one.all_layers);
      EXPECT_GT(one.us_median, 0);
      EXPECT_GT(one.us_prompt, 0);
      EXPECT_GT(one.experts_touched, 0);
    }
    options.context = 1 << 30;
    EXPECT_THAT(decode(checkpoint, options).error().to_string(), HasSubstr("context: needs 1 to"));
  }
}

TEST(BenchModel, HasModelForEveryExpertShape) {
  for (const LayerShape& layer : known_shapes()) {
    const auto model = find_model(layer.name);
    ASSERT_TRUE(model) << model.error().to_string();
    EXPECT_GT(model->num_layers, 0);
  }
}

// The caches of all sequences come before slots. Memory that cannot hold them is an error of the
// plan, not of a step.
TEST(BenchModel, PlanHasRoomForCachesOfAllSequences) {
  DecodeOptions options = small_options();
  const auto needs = [&](int64_t sequences) {
    options.batches = {1, sequences};
    options.model.device_memory = 1000;
    const Result<Decode> refused = decode_one(small_shape(), weights("int8-w8a8"), options);
    EXPECT_FALSE(refused);
    const std::string text = refused ? "" : refused.error().to_string();
    EXPECT_THAT(text, HasSubstr("for everything except experts, with caches"));
    return text.empty() ? 0 : std::stoll(text.substr(text.find("needs ") + 6));
  };
  const int64_t few = needs(1), many = needs(32);
  EXPECT_GT(many, few);
  options.model.device_memory = many;
  const auto results = decode(small_shape(), weights("int8-w8a8"), options);
  ASSERT_TRUE(results) << results.error().to_string();
  EXPECT_EQ(results->back().batch, 32);
  EXPECT_GE(results->back().num_slots, 0);
}

TEST(BenchModel, UsesRequestedBackend) {
  DecodeOptions options = small_options();
  options.model.backend = testing::backend("reference");
  const Result<Decode> result = decode_one(small_shape(), weights("int8-w8a8"), options);
  ASSERT_TRUE(result) << result.error().to_string();
  for (const Choice& choice : result->choices)
    EXPECT_EQ(choice.selection.plan->backend->name, "reference");
}

TEST(BenchModel, RejectsPartsThatModelLacks) {
  DecodeOptions options = small_options();
  RandomModelOptions random = weights("bf16");
  auto refused = [&] {
    const Result<Decode> result = decode_one(small_shape(), random, options);
    return result ? std::string("done") : result.error().to_string();
  };
  options.context = 64;
  EXPECT_THAT(refused(), HasSubstr("context: needs 1 to 63 tokens; it is 64"));
  options.context = 20;
  random.num_layers = 7;
  EXPECT_THAT(refused(), HasSubstr("num_layers: needs 1 to 6 layers; it is 7"));
  random.num_layers = 1;
  random.most_bytes = 100;
  EXPECT_THAT(refused(), HasSubstr("bytes for 1 layers"));
  EXPECT_THAT(find_model("qwen").error().to_string(), HasSubstr("qwen3-30b-a3b"));
}

TEST(BenchModel, TimesBatchedDecodeAndPrefill) {
  DecodeOptions options = small_options();
  options.batches = {1, 3};
  options.prompt = 40;
  options.model.max_num_tokens = 12;
  const auto results = decode(small_shape(), weights("int4-w4a16-g32"), options);
  ASSERT_TRUE(results) << results.error().to_string();
  ASSERT_EQ(results->size(), 2u);
  for (const Decode& one : *results) {
    EXPECT_EQ(one.batch, &one == &results->front() ? 1 : 3);
    EXPECT_GT(one.prompt_tokens, 0);
    EXPECT_LE(one.prompt_tokens, 40 * one.batch);
    EXPECT_GT(one.us_prompt, 0);
    EXPECT_EQ(one.us_replayed, 0) << "a CPU has no graphs";
  }
  options.batches = {65};
  EXPECT_THAT(decode(small_shape(), weights("int4-w4a16-g32"), options).error().to_string(),
              HasSubstr("batches: needs 1 to 64 sequences; it is 65"));
}

// Equal sequences would be routed to the same experts: 16 of them used 2 of 8 experts.
TEST(BenchModel, SpreadsTokensOverExperts) {
  for (const char* scheme : {"bf16", "int8-w8a8", "int4-w4a16-g32", "int4-w4a16-g32-asym",
                             "fp8-w8a8-block128x128", "mxfp4-w4a16"}) {
    SCOPED_TRACE(scheme);
    DecodeOptions options = small_options();
    options.batches = {1, 48};
    const auto results = decode(small_shape(), weights(scheme), options);
    ASSERT_TRUE(results) << results.error().to_string();
    EXPECT_EQ((*results)[0].num_experts, 8);
    EXPECT_EQ((*results)[0].experts_touched, 2) << "as many as one token goes to";
    EXPECT_GE((*results)[1].experts_touched, 7);
  }
}

TEST(BenchModel, StopsOnRequest) {
  DecodeOptions options = small_options();
  options.seconds = 1e9;
  int64_t asked = 0;
  options.model.progress = [&](int64_t, int64_t total) { return total != 1000 || ++asked < 5; };
  const Result<Decode> result = decode_one(small_shape(), weights("bf16"), options);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::kCancelled);
}

}  // namespace
}  // namespace moracle::bench::model_test
