// Tests replacing all weights of a model while it serves: all of them or none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/text.h"
#include "golden_model.h"
#include "support/model_words.h"
#include "support/sample.h"

namespace moracle::reload_test {
namespace {

using testing::all_logits;
using testing::golden_folder;
using testing::golden_model;
using testing::golden_reference;
using ::testing::HasSubstr;
using testing::SyntheticCheckpoint;
using testing::TemporaryFolder;

// Flips the highest bit of every number: the sign of bf16 and f32.
SyntheticCheckpoint other_weights(const std::string& name) {
  SyntheticCheckpoint other = golden_model(name);
  for (auto& [tensor, t] : other.tensors) {
    const size_t size = static_cast<size_t>(bits(t.dtype) / 8);
    for (size_t i = size - 1; i < t.bytes.size(); i += size) t.bytes[i] ^= std::byte{0x80};
  }
  return other;
}

class ModelReload : public ::testing::TestWithParam<std::string> {
 protected:
  const std::vector<int32_t> ids_ = golden_reference(GetParam()).ids;
  const TemporaryFolder folder_;

  Result<Checkpoint> written(const SyntheticCheckpoint& checkpoint) {
    const std::string to = str(folder_.path(), "/", count_++);
    std::filesystem::create_directory(to);
    MORACLE_CHECK(checkpoint.write(to));
    return Checkpoint::open(to);
  }
  Result<std::vector<float>> cold(const Checkpoint& checkpoint, const ModelOptions& options) {
    MORACLE_TRY(Model model, Model::load(checkpoint, options));
    return all_logits(model, ids_);
  }

 private:
  int count_ = 0;
};

TEST_P(ModelReload, MatchesColdLoadBitForBit) {
  const auto a = Checkpoint::open(golden_folder(GetParam()));
  const auto b = written(other_weights(GetParam()));
  ASSERT_TRUE(a && b);
  for (const char* backend : {"cpu", "reference"}) {
    for (const char* quantization : {"", "int8-per-channel", "fp8-per-tensor"}) {
      SCOPED_TRACE(str(backend, " ", quantization));
      const ModelOptions options{.backend = testing::backend(backend),
                                 .quantization = testing::quantization(quantization),
                                 .threads = 2};
      const auto before = cold(*a, options), after = cold(*b, options);
      auto model = Model::load(*a, options);
      ASSERT_TRUE(model) << model.error().to_string();
      ASSERT_TRUE(before && after);
      EXPECT_NE(*before, *after);
      const Status done = model->reload(*b);
      ASSERT_TRUE(done.ok()) << done.error().to_string();
      EXPECT_EQ(*all_logits(*model, ids_), *after);
      ASSERT_TRUE(model->reload(*b).ok());  // the same once more changes nothing
      EXPECT_EQ(*all_logits(*model, ids_), *after);
      ASSERT_TRUE(model->reload(*a).ok());
      EXPECT_EQ(*all_logits(*model, ids_), *before);
    }
  }
}

TEST_P(ModelReload, KeepsOldWeightsWhenStopped) {
  const auto a = Checkpoint::open(golden_folder(GetParam()));
  const auto b = written(other_weights(GetParam()));
  ASSERT_TRUE(a && b);
  const ModelOptions options{.threads = 2};
  auto model = Model::load(*a, options);
  ASSERT_TRUE(model) << model.error().to_string();
  const auto before = all_logits(*model, ids_);
  int steps = 0;
  ASSERT_TRUE(model->reload(*a, [&](int64_t, int64_t) { return ++steps > 0; }).ok());
  ASSERT_GE(steps, 10);
  // Threads report a slightly varying number of times. A report that never happens cannot stop the
  // load.
  for (int stop = 1, reached = 0; stop <= steps; ++stop) {
    int step = 0;
    const Status stopped = model->reload(*b, [&](int64_t, int64_t) { return ++step < stop; });
    if (stopped.ok()) {
      ASSERT_LT(step, stop);
      ASSERT_GT(reached, steps / 2);
      ASSERT_TRUE(model->reload(*a).ok());
      continue;
    }
    ++reached;
    EXPECT_EQ(stopped.error().kind, ErrorKind::kCancelled);
    ASSERT_EQ(*all_logits(*model, ids_), *before) << "stopped at " << stop << " of " << steps;
  }
}

TEST_P(ModelReload, BadFileChangesNothing) {
  const auto a = Checkpoint::open(golden_folder(GetParam()));
  ASSERT_TRUE(a);
  auto model =
      Model::load(*a, {.quantization = testing::quantization("int8-per-channel"), .threads = 2});
  ASSERT_TRUE(model) << model.error().to_string();
  const auto before = all_logits(*model, ids_);
  auto refused = [&](const SyntheticCheckpoint& bad, const std::string& why) {
    SCOPED_TRACE(why);
    const auto checkpoint = written(bad);
    const Status status = checkpoint ? model->reload(*checkpoint) : Status(checkpoint.error());
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().to_string(), HasSubstr(why));
    EXPECT_EQ(*all_logits(*model, ids_), *before);
  };
  SyntheticCheckpoint bad = other_weights(GetParam());
  // The last layer's experts cannot be quantized (NaN). All other experts are packed before.
  std::string last;
  for (const auto& [name, tensor] : bad.tensors) {
    const bool down = name.find("down_proj") != name.npos || name.find(".w2.") != name.npos ||
                      name.find("output_linear") != name.npos;
    if (down && !name.ends_with("bias")) last = name;
  }
  auto& bytes = bad.tensors.at(last).bytes;
  std::memset(bytes.data(), 0xff, bytes.size());
  refused(bad, last);
  bad = other_weights(GetParam());
  std::string norm;
  for (const char* name :
       {"model.norm.weight", "model.embedding_norm.weight", "backbone.norm_f.weight",
        "model.language_model.norm.weight", "model.hyper_connection_mixer.hc_norm.weight"})
    if (bad.tensors.erase(name) > 0) norm = name;
  refused(bad, norm);
  bad = other_weights(GetParam());
  std::string epsilon = "rms_norm_eps";
  for (const char* key : {"norm_eps", "layer_norm_epsilon"})
    if (bad.config.contains(key)) epsilon = key;
  bad.config[epsilon] = 0.5;
  refused(bad, "the architecture and the sizes of the loaded model");
  bad = other_weights(GetParam());
  // Kimi-Linear and Nemotron never rotate, Granite-4.0-H only where its config says so.
  if (!bad.config.contains("rope_parameters") || (bad.config.contains("position_embedding_type") &&
                                                  bad.config["position_embedding_type"] != "rope"))
    return;
  nlohmann::json& rope = bad.config["rope_parameters"];
  (rope.contains("full_attention") ? rope["full_attention"] : rope)["rope_theta"] = 77;
  bad.config.erase("layer_rope_theta");  // would hide it
  refused(bad, "attention");
}

INSTANTIATE_TEST_SUITE_P(Golden, ModelReload,
                         ::testing::ValuesIn(testing::sample_of(testing::golden_models(),
                                                                "ModelReload")),
                         [](const auto& param) { return param.param; });

INSTANTIATE_TEST_SUITE_P(Compressed, ModelReload, ::testing::Values("glm5_next_pools", "qwen4_exp"),
                         [](const auto& param) { return param.param; });

TEST(ModelReloadRefuses, EmbeddingsOfOtherFloatType) {
  const auto loaded = Checkpoint::open(golden_folder("mixtral"));
  ASSERT_TRUE(loaded);
  auto model = Model::load(*loaded, {.threads = 2});
  ASSERT_TRUE(model) << model.error().to_string();
  SyntheticCheckpoint other = golden_model("mixtral");
  const DType was = other.at("model.embed_tokens.weight").dtype;
  ASSERT_NE(was, DType::kF16);
  other.retype("model.embed_tokens.weight", DType::kF16);
  const TemporaryFolder folder;
  ASSERT_TRUE(other.write(folder.path()));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint);
  const Status status = model->reload(*checkpoint);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().to_string(), HasSubstr(str("reload: needs embeddings in ", name(was),
                                                        ", as in the loaded model; they are f16")));
}

// Each of these differences makes it another model.
TEST(ModelReloadRefuses, OtherModel) {
  const auto one = Checkpoint::open(golden_folder("mixtral"));
  ASSERT_TRUE(one);
  auto model = Model::load(*one, {.threads = 2});
  ASSERT_TRUE(model) << model.error().to_string();
  for (const std::string& name : testing::golden_models()) {
    if (name == "mixtral") continue;
    const auto other = Checkpoint::open(golden_folder(name));
    ASSERT_TRUE(other);
    EXPECT_FALSE(model->reload(*other).ok()) << name;
  }
}

}  // namespace
}  // namespace moracle::reload_test
