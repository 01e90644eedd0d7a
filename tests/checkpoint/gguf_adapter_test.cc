// Tests LoRA adapters in GGUF files: read for every expert, or rejected by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/to_gguf.h"
#include "reader_fixture.h"

namespace moracle::testing::gguf_adapter_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const SyntheticSize kSize;
const std::string kQ = "blk.0.attn_q.weight", kGate = "blk.1.ffn_gate_exps.weight";

TensorBytes counted(const std::string& name, std::vector<int64_t> shape, float first) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  return {name, DType::kF32, std::move(shape), bytes_of(values)};
}

class GgufAdapterFile : public ::testing::Test {
 protected:
  GgufAdapterFile() {
    to_gguf(model_).write(folder_.path() + "/model.gguf");
    good_.set("general.architecture", "qwen3moe");
    good_.set("general.type", "adapter");
    good_.set("adapter.type", "lora");
    good_.set("adapter.lora.alpha", 6.5);
    const Checkpoint checkpoint = base();
    q_ = must(checkpoint.tensor("model.layers.0.self_attn.q_proj.weight")).shape;
    good_.tensors = {counted(kQ + ".lora_a", {2, q_[1]}, 1), counted(kQ + ".lora_b", {q_[0], 2}, 2),
                     counted(kGate + ".lora_a", {kSize.experts, 3, kSize.hidden}, 3),
                     counted(kGate + ".lora_b", {kSize.experts, kSize.intermediate, 3}, 4)};
  }
  Checkpoint base() const { return must(Checkpoint::open(folder_.path() + "/model.gguf")); }
  Result<LoraAdapter> open(const GgufWriter& adapter) const {
    adapter.write(folder_.path() + "/adapter.bin");
    return LoraAdapter::open(folder_.path() + "/adapter.bin", base());
  }
  void expect_error(const GgufWriter& adapter, const std::string& text) const {
    const auto opened = open(adapter);
    ASSERT_FALSE(opened) << text;
    EXPECT_THAT(opened.error().to_string(), HasSubstr(text));
  }
  const SyntheticCheckpoint model_ = SyntheticCheckpoint::plain();
  const TemporaryFolder folder_;
  GgufWriter good_;
  std::vector<int64_t> q_;
};

TEST_F(GgufAdapterFile, HoldsPairsOfMatricesAndOfAllExperts) {
  const LoraAdapter adapter = must(open(good_));
  EXPECT_EQ(adapter.rank, 3);
  const LoraPair& q = adapter.modules.at("model.layers.0.self_attn.q_proj");
  EXPECT_EQ(q.rank, 2);
  EXPECT_EQ(q.scale, 3.25f);
  EXPECT_EQ(q.a[1], 2);
  EXPECT_EQ(q.b.back(), static_cast<float>(2 + 2 * q_[0] - 1));
  ASSERT_EQ(adapter.layers.size(), 1u);
  const std::vector<LoraPair>& gate = adapter.layers.at(1).gate;
  ASSERT_EQ(gate.size(), static_cast<size_t>(kSize.experts));
  EXPECT_EQ(gate[2].a[0], static_cast<float>(3 + 2 * 3 * kSize.hidden));
  EXPECT_EQ(gate[2].b[0], static_cast<float>(4 + 2 * 3 * kSize.intermediate));
  EXPECT_TRUE(adapter.layers.at(1).down.empty());
}

TEST_F(GgufAdapterFile, WithoutAlphaHasFactorOne) {
  GgufWriter adapter = good_;
  adapter.remove_key("adapter.lora.alpha");
  EXPECT_EQ(must(open(adapter)).modules.at("model.layers.0.self_attn.q_proj").scale, 1);
}

TEST_F(GgufAdapterFile, ReadsBlocks) {
  GgufWriter adapter = good_;
  TensorBytes& a = adapter.at(kQ + ".lora_a");
  a.dtype = DType::kQ8_0;  // blocks of an f16 scale and 32 codes
  a.bytes.assign(static_cast<size_t>(2 * q_[1] / 32 * 34), std::byte{3});
  const float scale = f16_to_float(0x0303);
  EXPECT_THAT(
      std::span(must(open(adapter)).modules.at("model.layers.0.self_attn.q_proj").a).first(2),
      ElementsAre(3 * scale, 3 * scale));
}

TEST_F(GgufAdapterFile, RejectsOtherKindsOfFilesByKey) {
  const std::tuple<const char*, nlohmann::json, const char*> cases[] = {
      {"general.type", "model", "general.type: needs adapter; it is model"},
      {"adapter.type", "dora", "adapter.type: needs lora; it is dora"},
      {"adapter.type", 5, "adapter.type: needs a string"},
      {"general.architecture", "llama",
       "general.architecture: needs qwen3moe, as the checkpoint; it is llama"},
      {"adapter.lora.alpha", 2e6, "adapter.lora.alpha: needs a number from -1000000 to 1000000"},
      {"adapter.alora.invocation_tokens", {1, 2}, "invocation_tokens: needs to be absent"},
  };
  for (const auto& [key, value, text] : cases) {
    GgufWriter adapter = good_;
    adapter.set(key, value);
    expect_error(adapter, text);
  }
  GgufWriter lacking = good_;
  lacking.remove_key("general.type");
  expect_error(lacking, "general.type: needs adapter; it is model");
  to_gguf(model_).write(folder_.path() + "/other.gguf");
  EXPECT_THAT(LoraAdapter::open(folder_.path() + "/other.gguf", base()).error().to_string(),
              HasSubstr("general.type: needs adapter"));
}

TEST_F(GgufAdapterFile, RejectsTensorsThatDoNotFitByName) {
  const auto changed = [&](const std::string& name, const auto& change) {
    GgufWriter adapter = good_;
    change(adapter.at(name));
    return adapter;
  };
  GgufWriter lacking = good_;
  lacking.remove(kQ + ".lora_b");
  expect_error(lacking, "tensor 'blk.0.attn_q.weight.lora_a': needs 'blk.0.attn_q.weight.lora_b'");
  lacking = good_;
  lacking.remove(kGate + ".lora_a");
  expect_error(lacking, "lora_b': needs 'blk.1.ffn_gate_exps.weight.lora_a' beside it");
  const auto resize = [&](std::vector<int64_t> shape) {
    return [shape](TensorBytes& tensor) { tensor = counted(tensor.name, shape, 1); };
  };
  expect_error(changed(kQ + ".lora_a", resize({3, q_[1]})),
               str("lora_b': needs shape [", q_[0], ", 3]; it is "));
  expect_error(changed(kQ + ".lora_a", resize({q_[1], 2})),
               str("lora_a': needs shape [rank, ", q_[1], "]; it is "));
  expect_error(changed(kGate + ".lora_a", resize({kSize.experts - 1, 3, kSize.hidden})),
               str("lora_a': needs shape [", kSize.experts, ", rank, ", kSize.hidden, "]; it is "));
  const auto rename = [&](const std::string& from, const std::string& to) {
    GgufWriter adapter = good_;
    for (const char* part : {".lora_a", ".lora_b"}) adapter.at(from + part).name = to + part;
    return adapter;
  };
  expect_error(rename(kQ, "blk.7.attn_q.weight"),
               "'blk.7.attn_q.weight.lora_a': needs 'blk.7.attn_q.weight' in the checkpoint");
  expect_error(rename(kQ, "output_norm.weight"), "lora_b': needs shape [1, 2]");
  GgufWriter norm = good_;
  norm.tensors.push_back(counted("output_norm.weight", {kSize.hidden}, 1));
  expect_error(norm, "'output_norm.weight': needs a tensor .lora_a or .lora_b; it is neither");
  GgufWriter infinite = good_;
  const float value = INFINITY;
  std::memcpy(infinite.at(kQ + ".lora_b").bytes.data(), &value, sizeof value);
  expect_error(infinite, "'blk.0.attn_q.weight.lora_b (base_model.");
}

TEST_F(GgufAdapterFile, NeedsCheckpointInGguf) {
  const TemporaryFolder other;
  must(model_.write(other.path()));
  good_.write(folder_.path() + "/adapter.gguf");
  const auto opened =
      LoraAdapter::open(folder_.path() + "/adapter.gguf", must(Checkpoint::open(other.path())));
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().to_string(), HasSubstr("adapter.gguf: needs a checkpoint in GGUF"));
}

TEST_F(GgufAdapterFile, OutsideFolderIsNotOpened) {
  const TemporaryFolder inside;
  good_.write(folder_.path() + "/adapter.gguf");
  const std::string link = inside.path() + "/link.gguf";
  std::filesystem::create_symlink(folder_.path() + "/adapter.gguf", link);
  EXPECT_THAT(LoraAdapter::open(link, base(), inside.path()).error().to_string(),
              HasSubstr("leaves the folder"));
  EXPECT_TRUE(LoraAdapter::open(link, base(), folder_.path()));
}

}  // namespace
}  // namespace moracle::testing::gguf_adapter_test
