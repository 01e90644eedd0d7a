// Tests a model with LoRA adapters: each sequence of a batch may use another adapter or none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoint/reader_fixture.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "moracle/moracle.h"

namespace moracle::testing::adapters_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRank = 2, kHidden = 32, kIntermediate = 16;

float a_of(int64_t j, int64_t k) {
  return 0.05f * static_cast<float>((j * 7 + k * 3) % 11 - 5);
}
float b_of(int64_t n, int64_t j) {
  return 0.1f * static_cast<float>((n * 5 + j) % 7 - 3);
}

/// An adapter for every expert's gate and down projections in layer 1, as PEFT writes it.
void write_adapter(const TemporaryFolder& folder, float sign) {
  std::vector<TensorBytes> tensors;
  auto add = [&](const std::string& name, int64_t rows, int64_t cols, auto value) {
    std::vector<float> values;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) values.push_back(value(r, c));
    }
    tensors.push_back({"base_model.model." + name, DType::kF32, {rows, cols}, bytes_of(values)});
  };
  for (int64_t e = 0; e < SyntheticSize().experts; ++e) {
    for (const char* part : {"gate_proj", "down_proj"}) {
      const bool down = std::strcmp(part, "down_proj") == 0;
      const int64_t n = down ? kHidden : kIntermediate, k = down ? kIntermediate : kHidden;
      const std::string module = SyntheticCheckpoint::expert(1, e, part);
      add(module + ".lora_A.weight", kRank, k, a_of);
      add(module + ".lora_B.weight", n, kRank,
          [&](int64_t r, int64_t j) { return sign * b_of(r, j); });
    }
  }
  must(write_safetensors(folder.path() + "/adapter_model.safetensors", tensors));
  folder.write("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})");
}

class ModelAdapters : public ::testing::Test {
 protected:
  ModelAdapters() {
    write_adapter(one_, 1);
    write_adapter(other_, -1);
    must(SyntheticCheckpoint::plain().write(base_.path()));
  }
  Model load(std::vector<std::string> adapters) {
    ModelOptions options;
    options.threads = 2;
    options.deterministic = true;
    options.adapters = std::move(adapters);
    return must(Model::load(must(Checkpoint::open(base_.path())), options));
  }
  struct Sequence {
    std::vector<int32_t> tokens;
    int32_t adapter;
  };
  /// The last logits of each sequence, all in one step.
  static std::vector<std::vector<float>> run(Model& model, const std::vector<Sequence>& batch) {
    std::vector<KvCache> caches;
    for (size_t i = 0; i < batch.size(); ++i) caches.push_back(must(model.make_cache(16)));
    std::vector<Model::Step> steps;
    for (size_t i = 0; i < batch.size(); ++i)
      steps.push_back({batch[i].tokens, &caches[i], batch[i].adapter});
    must(model.forward(steps));
    std::vector<std::vector<float>> logits;
    int64_t end = 0;
    for (const Sequence& sequence : batch) {
      end += static_cast<int64_t>(sequence.tokens.size());
      const auto row = must(model.logits(end - 1, 1));
      logits.emplace_back(row.begin(), row.end());
    }
    return logits;
  }
  TemporaryFolder base_, one_, other_;
};

TEST_F(ModelAdapters, ApplyAdapterOfEachSequence) {
  Model plain = load({}), model = load({one_.path(), other_.path()});
  const std::vector<int32_t> text = {3, 7, 1, 12, 5};
  const auto together = run(model, {{text, -1}, {text, 0}, {text, 1}});
  EXPECT_EQ(together[0], run(plain, {{text, -1}})[0]) << "none is as if there were none";
  EXPECT_EQ(together[1], run(model, {{text, 0}})[0]);
  EXPECT_EQ(together[2], run(model, {{text, 1}})[0]);
  EXPECT_NE(together[0], together[1]);
  EXPECT_NE(together[1], together[2]);
}

TEST_F(ModelAdapters, MatchMergedCheckpoint) {
  SyntheticCheckpoint merged = SyntheticCheckpoint::plain();
  for (int64_t e = 0; e < SyntheticSize().experts; ++e) {
    for (const char* part : {"gate_proj", "down_proj"}) {
      TensorBytes& tensor = merged.tensors.at(SyntheticCheckpoint::expert(1, e, part) + ".weight");
      const int64_t n = tensor.shape[0], k = tensor.shape[1];
      std::vector<float> values(n * k);
      const auto* codes = reinterpret_cast<const uint16_t*>(tensor.bytes.data());
      ASSERT_EQ(tensor.dtype, DType::kBF16);
      for (int64_t i = 0; i < n * k; ++i) {
        values[i] = bf16_to_float(codes[i]);
        for (int64_t j = 0; j < kRank; ++j) values[i] += 2 * b_of(i / k, j) * a_of(j, i % k);
      }
      tensor.dtype = DType::kF32;
      tensor.bytes = bytes_of(values);
    }
  }
  // One dtype for all experts of the layer.
  for (int64_t e = 0; e < SyntheticSize().experts; ++e) {
    TensorBytes& up = merged.tensors.at(SyntheticCheckpoint::expert(1, e, "up_proj") + ".weight");
    std::vector<float> values;
    const auto* codes = reinterpret_cast<const uint16_t*>(up.bytes.data());
    for (size_t i = 0; i < up.bytes.size() / 2; ++i) values.push_back(bf16_to_float(codes[i]));
    up.dtype = DType::kF32;
    up.bytes = bytes_of(values);
  }
  TemporaryFolder folder;
  must(merged.write(folder.path()));
  ModelOptions options;
  options.threads = 2;
  Model whole = must(Model::load(must(Checkpoint::open(folder.path())), options));
  Model model = load({one_.path()});
  const std::vector<int32_t> text = {3, 7, 1, 12, 5};
  const auto got = run(model, {{text, 0}})[0], want = run(whole, {{text, -1}})[0];
  EXPECT_LT(relative_difference(got, want), logit_bound(model.choices(), whole.choices()));
}

TEST_F(ModelAdapters, RejectUnloadedAdapters) {
  Model model = load({one_.path()}), plain = load({});
  const std::vector<int32_t> text = {3};
  KvCache cache = must(model.make_cache(4));
  for (int32_t id : {1, -2}) {
    const Model::Step step{text, &cache, id};
    const Status done = model.forward({&step, 1});
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().need, "-1, or an adapter from 0 to 0");
  }
  KvCache of_plain = must(plain.make_cache(4));
  const Model::Step step{text, &of_plain, 0};
  EXPECT_THAT(plain.forward({&step, 1}).error().to_string(), HasSubstr("has no adapters"));
}

TEST_F(ModelAdapters, PlannedBeforeWeightsAreRead) {
  const Checkpoint checkpoint = must(Checkpoint::open(base_.path()));
  ModelOptions options;
  const ModelPlan without = must(plan(checkpoint, options));
  options.adapters = {one_.path(), other_.path()};
  const ModelPlan with = must(plan(checkpoint, options));
  EXPECT_GT(with.weight_bytes, without.weight_bytes);
  EXPECT_EQ(load({one_.path(), other_.path()}).weight_bytes() - load({}).weight_bytes(),
            with.weight_bytes - without.weight_bytes);
  options.adapters = {"/nowhere"};
  EXPECT_THAT(plan(checkpoint, options).error().to_string(), HasSubstr("adapter_config.json"));
}

}  // namespace
}  // namespace moracle::testing::adapters_test
