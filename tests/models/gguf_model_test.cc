// A model in GGUF computes what the same model in safetensors does.
#include <gmock/gmock.h>

#include <string>

#include "checkpoint/to_gguf.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "support/must.h"

namespace moracle::gguf_model_test {
namespace {

using testing::GgufForm;
using testing::SyntheticCheckpoint;
using testing::TemporaryFolder;

void rename(GgufForm& form, const std::string& from, const std::string& to) {
  for (auto& [name, published] : form.tensors) {
    if (name == from) published = to;
  }
}

SyntheticCheckpoint without_windows(const std::string& golden) {
  SyntheticCheckpoint model = testing::golden_model(golden);
  for (const char* key : {"use_sliding_window", "sliding_window", "layer_types"})
    model.config.erase(key);
  return model;
}

void expect_equal_logits(const SyntheticCheckpoint& model, const GgufForm& form) {
  const std::vector<int32_t> ids = {1, 3, 5, 7, 9, 11, 13, 2, 4, 6, 8, 10};
  const TemporaryFolder folder;
  testing::to_gguf(model, form).write(folder.path() + "/a.gguf");
  const Checkpoint checkpoint = testing::must(Checkpoint::open(folder.path() + "/a.gguf"));
  Model loaded =
      testing::must(Model::load(checkpoint, {.backend = testing::backend("cpu"), .threads = 2}));
  const auto logits = testing::must(testing::all_logits(loaded, ids));
  const auto expected = testing::must(testing::all_logits(model, ids));
  EXPECT_LE(testing::relative_difference(logits, expected), testing::kCloseInF32);
}

TEST(GgufModel, Qwen3MoeGivesTheLogitsOfTheSafetensors) {
  expect_equal_logits(SyntheticCheckpoint::plain(), GgufForm::qwen3moe());
}

TEST(GgufModel, Qwen2MoeGivesTheLogitsOfTheSafetensors) {
  SyntheticCheckpoint model = without_windows("qwen2_moe_windows");
  GgufForm form = GgufForm::qwen3moe();
  form.architecture = "qwen2moe";
  form.keys.emplace_back("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
  const std::string block = "blk.{L}.", layer = "model.layers.{L}.";
  for (const std::string part : {"q", "k", "v"})
    form.tensors.emplace_back(block + "attn_" + part + ".bias",
                              layer + "self_attn." + part + "_proj.bias");
  for (const std::string part : {"gate", "up", "down"})
    form.tensors.emplace_back(block + "ffn_" + part + "_shexp.weight",
                              layer + "mlp.shared_expert." + part + "_proj.weight");
  form.tensors.emplace_back(block + "ffn_gate_inp_shexp.weight",
                            layer + "mlp.shared_expert_gate.weight");
  expect_equal_logits(model, form);
}

// llama.cpp's converter stores the gate of the shared expert as a vector.
TEST(GgufModel, Qwen2MoeReadsItsSharedGateAsVector) {
  SyntheticCheckpoint model = without_windows("qwen2_moe_windows");
  GgufForm form = GgufForm::qwen3moe();
  form.architecture = "qwen2moe";
  form.keys.emplace_back("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
  const std::string gate = "model.layers.{L}.mlp.shared_expert_gate.weight";
  form.tensors = {{"blk.{L}.ffn_gate_inp_shexp.weight", gate}};
  testing::GgufWriter writer = testing::to_gguf(model, form);
  for (testing::TensorBytes& tensor : writer.tensors) tensor.shape = {tensor.shape[1]};
  const TemporaryFolder folder;
  writer.write(folder.path() + "/a.gguf");
  const Checkpoint checkpoint = testing::must(Checkpoint::open(folder.path() + "/a.gguf"));
  const TensorView view = testing::must(checkpoint.tensor(testing::filled(gate, "{L}", 1)));
  EXPECT_EQ(to_string(view), to_string({nullptr, DType::kF32, {1, model.config["hidden_size"]}}));
}

TEST(GgufModel, MixtralGivesTheLogitsOfTheSafetensors) {
  const SyntheticCheckpoint model = without_windows("mixtral");
  GgufForm form = GgufForm::qwen3moe();
  form.architecture = "llama";
  form.permuted = true;
  const std::string experts = "model.layers.{L}.block_sparse_moe.";
  rename(form, "blk.{L}.ffn_gate_inp.weight", experts + "gate.weight");
  const GgufForm::Names parts = {{"gate", "w1"}, {"up", "w3"}, {"down", "w2"}};
  for (const auto& [part, name] : parts) {
    rename(form, str("blk.{L}.ffn_", part, "_exps.weight"),
           str(experts, "experts.{E}.", name, ".weight"));
  }
  expect_equal_logits(model, form);
}

}  // namespace
}  // namespace moracle::gguf_model_test
