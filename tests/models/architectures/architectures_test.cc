// Compares every architecture as a tiny whole model with transformers on the same values
// (tests/golden/README.md), in one step and in many steps. Also tests the variants of its files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/text.h"
#include "models/description.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "oracle/backend.h"
#include "support/model_words.h"

namespace moracle::architectures_test {
namespace {

using testing::all_logits;
using testing::golden_folder;
using testing::golden_model;
using testing::golden_reference;
using testing::GoldenReference;
using testing::kCloseInF32;
using testing::logit_bound;
using testing::relative_difference;
using testing::SyntheticCheckpoint;

class Architectures : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string folder_ = golden_folder(GetParam());
  const GoldenReference want_ = golden_reference(GetParam());
  const int64_t count_ = static_cast<int64_t>(want_.ids.size());

  Result<Model> load(const std::string& backend, int64_t max_num_tokens) {
    MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(folder_));
    return Model::load(
        checkpoint,
        {.backend = testing::backend(backend), .threads = 2, .max_num_tokens = max_num_tokens});
  }
};

TEST_P(Architectures, MatchTransformers) {
  for (const Backend& backend : backends()) {
    if (!backend.built() || backend.platform != Platform::kCpu) continue;
    ModelOptions named;
    named.backend = testing::backend(backend.name);
    if (!plan(*Checkpoint::open(folder_), named)) continue;
    auto model = load(std::string(backend.name), count_);
    ASSERT_TRUE(model) << model.error().to_string();
    const auto got = all_logits(*model, want_.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    const double difference = relative_difference(*got, want_.logits);
    EXPECT_LT(difference, logit_bound(model->choices(), count_)) << backend.name;
    RecordProperty(std::string(backend.name), str(difference));
  }
}

// Two sequences of different progress share each step; steps cross the edges of windows and caches.
TEST_P(Architectures, MatchWholePromptWhenRunInSteps) {
  auto model = load("cpu", 5);
  ASSERT_TRUE(model) << model.error().to_string();
  KvCache caches[] = {*model->make_cache(count_), *model->make_cache(count_)};
  const std::span<const int32_t> ids = want_.ids;
  const auto vocabulary = static_cast<size_t>(model->vocab_size());
  // Shorter sequences have other keys than the whole prompt.
  const int64_t short_context = describe(*Checkpoint::open(folder_))->spec.short_context,
                first = short_context < count_ ? short_context : 0;
  int64_t done[] = {0, 0};
  while (done[0] < count_ || done[1] < count_) {
    const int64_t counts[] = {std::min<int64_t>(3, count_ - done[0]),
                              std::min<int64_t>(2, count_ - done[1])};
    const Model::Step steps[] = {{ids.subspan(done[0], counts[0]), &caches[0]},
                                 {ids.subspan(done[1], counts[1]), &caches[1]}};
    ASSERT_TRUE(model->forward(steps));
    auto logits = model->logits(0, counts[0] + counts[1]);
    ASSERT_TRUE(logits) << logits.error().to_string();
    int64_t row = 0;
    for (int s = 0; s < 2; ++s) {
      for (int64_t i = 0; i < counts[s]; ++i, ++row) {
        if (done[s] + counts[s] <= first) continue;
        const std::span<const float> want(&want_.logits[(done[s] + i) * vocabulary], vocabulary);
        EXPECT_LT(relative_difference(logits->subspan(row * vocabulary, vocabulary), want),
                  4 * kCloseInF32)
            << "sequence " << s << " position " << done[s] + i;
      }
      done[s] += counts[s];
    }
  }
}

TEST_P(Architectures, PlanMatchesLoad) {
  const auto checkpoint = Checkpoint::open(folder_);
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const auto planned = plan(*checkpoint, {.threads = 2});
  const auto model = Model::load(*checkpoint, {.threads = 2});
  ASSERT_TRUE(planned) << planned.error().to_string();
  ASSERT_TRUE(model) << model.error().to_string();
  EXPECT_EQ(planned->weight_bytes, model->weight_bytes());
  ASSERT_EQ(planned->choices.size(), model->choices().size());
  for (size_t i = 0; i < planned->choices.size(); ++i) {
    EXPECT_EQ(planned->choices[i].part, model->choices()[i].part);
    EXPECT_EQ(planned->choices[i].layers, model->choices()[i].layers);
  }
  const auto what = outline(*checkpoint);
  ASSERT_TRUE(what) << what.error().to_string();
  int64_t bytes = 0;
  for (const Outline::Part& part : what->parts) bytes += part.bytes;
  EXPECT_EQ(bytes, checkpoint->total_bytes());
  EXPECT_EQ(what->not_runnable, "");
}

// transformers 4 wrote the rotary base next to the other settings.
TEST_P(Architectures, ReadOlderConfigDialect) {
  SyntheticCheckpoint older = golden_model(GetParam());
  nlohmann::json rope = older.config["rope_parameters"];
  if (!rope.contains("rope_theta")) GTEST_SKIP() << "this family is newer than the dialect";
  older.config.erase("rope_parameters");
  older.config["rope_theta"] = rope["rope_theta"];
  rope.erase("rope_theta");
  if (rope.contains("partial_rotary_factor")) {
    older.config["partial_rotary_factor"] = rope["partial_rotary_factor"];
    rope.erase("partial_rotary_factor");
  }
  const bool plain = rope["rope_type"] == "default" && GetParam() != "gpt_oss";
  older.config["rope_scaling"] = plain ? nlohmann::json(nullptr) : rope;
  if (!plain) {
    older.config["rope_scaling"]["type"] = rope["rope_type"];
    older.config["rope_scaling"].erase("rope_type");
  }
  const auto got = all_logits(older, want_.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want_.logits), kCloseInF32);
}

INSTANTIATE_TEST_SUITE_P(Golden, Architectures, ::testing::ValuesIn(testing::golden_models()),
                         [](const auto& param) { return param.param; });
INSTANTIATE_TEST_SUITE_P(Compressed, Architectures,
                         ::testing::ValuesIn(testing::compressed_models()),
                         [](const auto& param) { return param.param; });

// ---- single architectures ----

TEST(Mixtral, ReadsTensorNamesOfOtherTools) {
  const GoldenReference want = golden_reference("mixtral");
  for (const bool in_mlp : {false, true}) {
    SyntheticCheckpoint renamed = golden_model("mixtral");
    for (const auto& [name, tensor] : std::map(renamed.tensors)) {
      std::string other = name;
      for (const auto& [from, to] : {std::pair{".w1.", ".gate_proj."},
                                     {".w3.", ".up_proj."},
                                     {".w2.", ".down_proj."},
                                     {"block_sparse_moe", in_mlp ? "mlp" : "block_sparse_moe"}}) {
        const size_t at = other.find(from);
        if (at != other.npos) other.replace(at, std::string_view(from).size(), to);
      }
      if (other != name) renamed.rename(name, other);
    }
    const auto got = all_logits(renamed, want.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
  }
}

// Without the window the first tokens keep their result. Tokens that it had cut off count again.
TEST(Mixtral, AttendsToEverythingWithoutWindow) {
  const GoldenReference want = golden_reference("mixtral");
  SyntheticCheckpoint open = golden_model("mixtral");
  const auto window = open.config["sliding_window"].get<size_t>();
  const size_t vocabulary = want.logits.size() / want.ids.size();
  open.config["sliding_window"] = nullptr;
  const auto got = all_logits(open, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  auto row = [&](const std::vector<float>& logits, size_t r) {
    return std::span(logits).subspan(r * vocabulary, vocabulary);
  };
  for (size_t r = 0; r < want.ids.size(); ++r) {
    const double difference = relative_difference(row(*got, r), row(want.logits, r));
    if (r < window)
      EXPECT_LT(difference, 4 * kCloseInF32) << r;
    else
      EXPECT_GT(difference, 1e-3) << r;
  }
}

TEST(GptOss, LayersAlternateFromSlidingWindowByDefault) {
  const GoldenReference want = golden_reference("gpt_oss");
  SyntheticCheckpoint unnamed = golden_model("gpt_oss");
  unnamed.config.erase("layer_types");
  const auto got = all_logits(unnamed, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
  unnamed.config["layer_types"] = {"full_attention", "sliding_attention"};
  const auto swapped = all_logits(unnamed, want.ids);
  ASSERT_TRUE(swapped) << swapped.error().to_string();
  EXPECT_GT(relative_difference(*swapped, want.logits), 1e-3);
}

// These files name the layers that predict one more token differently.
TEST(MultiTokenPrediction, IsIgnoredUnderNamesOfOtherFamilies) {
  for (const auto& [model, name] :
       {std::pair{"ernie4_5_moe", "model.mtp_block.0.mlp.up_proj.weight"},
        {"exaone_moe", "mtp.layers.0.mlp.up_proj.weight"},
        {"glm4_moe", "model.layers.2.eh_proj.weight"}}) {
    SCOPED_TRACE(model);
    const GoldenReference want = golden_reference(model);
    SyntheticCheckpoint more = golden_model(model);
    more.add_floats(name, {8, 24});
    const auto got = all_logits(more, want.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
  }
}

// Kimi-K2 has the architecture of DeepSeek-V3 and a model_type of its own.
TEST(DeepseekV3, ReadsFilesOfKimiK2) {
  const GoldenReference want = golden_reference("deepseek_v3");
  SyntheticCheckpoint kimi = golden_model("deepseek_v3");
  kimi.config["model_type"] = "kimi_k2";
  const auto got = all_logits(kimi, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
}

// Published files name groups and a method that ignores them.
TEST(DeepseekV2, GreedyMethodIgnoresGroups) {
  const GoldenReference want = golden_reference("deepseek_v2_lite");
  SyntheticCheckpoint grouped = golden_model("deepseek_v2_lite");
  grouped.config["n_group"] = 4;
  grouped.config["topk_group"] = 1;
  const auto got = all_logits(grouped, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
}

// transformers has no such key in this family.
TEST(Mixtral, IgnoresNormTopkProb) {
  const GoldenReference want = golden_reference("mixtral");
  SyntheticCheckpoint named = golden_model("mixtral");
  named.config["norm_topk_prob"] = false;
  const auto got = all_logits(named, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
}

// Published files have a name of their own for the score, which is the same in all of them.
TEST(Dots1, IgnoresScoringFunc) {
  const GoldenReference want = golden_reference("dots1");
  SyntheticCheckpoint published = golden_model("dots1");
  published.config["scoring_func"] = "noaux_tc";
  const auto got = all_logits(published, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
}

TEST(Dots1, LayersFromMaxWindowLayersHaveWindowByDefault) {
  const GoldenReference want = golden_reference("dots1");
  SyntheticCheckpoint unnamed = golden_model("dots1");
  unnamed.config.erase("layer_types");
  const auto got = all_logits(unnamed, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
  unnamed.config["max_window_layers"] = 2;
  const auto open = all_logits(unnamed, want.ids);
  ASSERT_TRUE(open) << open.error().to_string();
  EXPECT_GT(relative_difference(*open, want.logits), 1e-3);
}

// Published files name the rotated columns instead of their share.
TEST(MinimaxM2, ReadsRotaryDim) {
  const GoldenReference want = golden_reference("minimax_m2");
  SyntheticCheckpoint published = golden_model("minimax_m2");
  published.config["rope_parameters"].erase("partial_rotary_factor");
  published.config.erase("partial_rotary_factor");
  const auto whole = all_logits(published, want.ids);
  ASSERT_TRUE(whole) << whole.error().to_string();
  EXPECT_GT(relative_difference(*whole, want.logits), 1e-3);
  published.config["rotary_dim"] = 4;
  const auto got = all_logits(published, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
}

// Published files have one more layer at the end, which predicts one more token.
TEST(DeepseekV3, IgnoresMultiTokenPredictionLayers) {
  const GoldenReference want = golden_reference("deepseek_v3");
  SyntheticCheckpoint more = golden_model("deepseek_v3");
  more.add_floats("model.layers.2.eh_proj.weight", {24, 48});
  more.add_floats("model.layers.2.mlp.experts.0.up_proj.weight", {8, 24});
  more.config["num_nextn_predict_layers"] = 1;
  const auto got = all_logits(more, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
  const auto what = outline(*more.open());
  ASSERT_TRUE(what) << what.error().to_string();
  const auto part = std::find_if(what->parts.begin(), what->parts.end(), [](const auto& p) {
    return p.what == "multi-token prediction, not run";
  });
  ASSERT_NE(part, what->parts.end());
  EXPECT_EQ(part->num_tensors, 2);
  EXPECT_EQ(part->bytes, 2 * (24 * 48 + 8 * 24));
  EXPECT_EQ(part->scheme, "not read");
  more.config["num_nextn_predict_layers"] = 0;
  const auto unknown = all_logits(more, want.ids);
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().to_string(), ::testing::HasSubstr("model.layers.2.eh_proj.weight"));
}

TEST(DeepseekV3, KeepsDecompressedKeysAndValues) {
  const auto checkpoint = Checkpoint::open(golden_folder("deepseek_v3"));
  const auto planned = plan(*checkpoint, {});
  ASSERT_TRUE(planned) << planned.error().to_string();
  // Two layers of 4 heads: keys of 6 + 4, values of 8, in f32.
  EXPECT_EQ(planned->cache_bytes_per_token, 2 * 4 * (10 + 8) * 4);
}

// Published files write the architecture in another way.
TEST(Phimoe, ReadsFilesOfEitherArchitectureName) {
  const GoldenReference want = golden_reference("phimoe");
  SyntheticCheckpoint published = golden_model("phimoe");
  published.config["architectures"] = {"PhiMoEForCausalLM"};
  const auto got = all_logits(published, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
}

TEST(Phimoe, NamesBadLongRopeFactors) {
  for (const auto& [key, value] :
       {std::pair<const char*, nlohmann::json>{"long_factor", {1.0, 2.0}},
        {"short_factor", {1.0, 0.0, 2.0}},
        {"short_mscale", nullptr},
        {"long_mscale", -1}}) {
    SyntheticCheckpoint wrong = golden_model("phimoe");
    wrong.config["rope_parameters"][key] = value;
    const auto planned = plan(*wrong.open());
    ASSERT_FALSE(planned) << key;
    EXPECT_THAT(planned.error().to_string(), ::testing::HasSubstr(key));
  }
}

// Layers without RoPE, layers with experts and kinds of attention follow from the other keys.
TEST(Llama4, ListsOfLayersHaveDefaults) {
  for (const char* name : {"llama4", "llama4_plain"}) {
    SCOPED_TRACE(name);
    const GoldenReference want = golden_reference(name);
    SyntheticCheckpoint bare = golden_model(name);
    for (const char* key : {"layer_types", "moe_layers"}) bare.config.erase(key);
    if (bare.config["attention_bias"] == true)
      bare.config["no_rope_layers"] = nlohmann::json::array();
    // Older files give a number.
    bare.config["attn_temperature_tuning"] = bare.config["attn_temperature_tuning"] == true ? 4 : 0;
    const auto got = all_logits(bare, want.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
  }
}

// Each setting of attention changes the result: the reference is not blind to it.
TEST(Llama4, EverySettingOfAttentionMatters) {
  const GoldenReference want = golden_reference("llama4");
  for (const auto& [key, value] : {std::pair<const char*, nlohmann::json>{"use_qk_norm", false},
                                   {"attn_temperature_tuning", false},
                                   {"attn_scale", 0.5},
                                   {"floor_scale", 5},
                                   {"attention_chunk_size", 8},
                                   {"no_rope_layers", {1, 1, 1, 1}}}) {
    SCOPED_TRACE(key);
    SyntheticCheckpoint other = golden_model("llama4");
    other.config[key] = value;
    const auto got = all_logits(other, want.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_GT(relative_difference(*got, want.logits), 1e-3);
  }
}

// Quantized files hold one tensor for each expert's gate, up and down.
TEST(Llama4, ReadsExpertsOfOneTensorEach) {
  const GoldenReference want = golden_reference("llama4");
  SyntheticCheckpoint split = golden_model("llama4");
  for (const auto& [name, fused] : std::map(split.tensors)) {
    const size_t at = name.find(".experts.");
    if (at == name.npos) continue;
    const bool gate_up = name.ends_with("gate_up_proj");
    const int64_t parts = gate_up ? 2 : 1, k = fused.shape[1], n = fused.shape[2] / parts;
    const auto* const values = reinterpret_cast<const uint16_t*>(fused.bytes.data());
    for (int64_t part = 0; part < fused.shape[0] * parts; ++part) {
      std::vector<std::byte> turned(static_cast<size_t>(n * k) * sizeof(uint16_t));
      for (int64_t i = 0; i < n * k; ++i) {
        const int64_t row = i / k, column = i % k, e = part / parts;
        std::memcpy(&turned[i * sizeof(uint16_t)],
                    &values[((e * k + column) * parts + part % parts) * n + row], sizeof(uint16_t));
      }
      const std::string module = gate_up ? (part % 2 == 0 ? "gate_proj" : "up_proj") : "down_proj";
      const std::string one =
          str(name.substr(0, at), ".experts.", part / parts, ".", module, ".weight");
      split.tensors[one] = {one, fused.dtype, {n, k}, std::move(turned)};
    }
    split.remove(name);
  }
  const auto got = all_logits(split, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want.logits), kCloseInF32);
}

}  // namespace
}  // namespace moracle::architectures_test
