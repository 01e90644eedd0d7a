// libFuzzer: no JSON file of a checkpoint folder (except tokenizer.json) may crash opening and
// describing it. The tensors come from tiny valid checkpoints.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "fuzz/checkpoint_fuzz.h"
#include "moracle/checkpoint.h"
#include "moracle/model.h"

namespace moracle::testing::config_fuzz {

namespace {

struct Base {
  SyntheticCheckpoint checkpoint;
  TemporaryFolder folder;

  explicit Base(SyntheticCheckpoint made) : checkpoint(std::move(made)) {
    require(checkpoint.write(folder.path()).ok());
    folder.write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<e>": 2},
        "merges": []}, "added_tokens": [], "decoder": {"type": "Fuse"}})");
  }
  void remove(const char* file) const { std::filesystem::remove(folder.path() + "/" + file); }
};

/// Opens the folder, describes everything and reads it.
void open(const std::string& folder) {
  const auto checkpoint = Checkpoint::open(folder);
  if (!passes(checkpoint)) return;
  const auto weights = checkpoint->moe_layer(0);
  if (passes(weights)) {
    for (int64_t e = 0; e < weights->spec.num_experts; ++e) {
      passes(weights->w13.expert(e));
      passes(weights->w2.expert(e));
    }
  }
  passes(checkpoint->router("model.layers.0.mlp.gate"));
  passes(moracle::outline(*checkpoint));
  const auto tokenizer = Tokenizer::open(folder);
  if (passes(tokenizer)) passes(tokenizer->encode("a<e> b"));
  passes(GenerationConfig::open(*checkpoint, tokenizer ? &*tokenizer : nullptr));
  const auto chat = ChatTemplate::open(folder);
  if (passes(chat)) passes(chat->render({{{"user", "1+1?"}}}));
}

const Base& base(size_t index) {
  static const std::array<Base, 4> bases = {
      Base(SyntheticCheckpoint::plain(kTiny)), Base(SyntheticCheckpoint::gptq({}, kTiny)),
      Base(SyntheticCheckpoint::gptq({.symmetric = false, .desc_act = true}, kTiny)),
      Base(SyntheticCheckpoint::int8(kTiny))};
  return bases[index % bases.size()];
}

}  // namespace

int run(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Base& tensors = base(data[0]);
  nlohmann::json config = tensors.checkpoint.config;
  const size_t kind = data[0] / 4 % 8;
  if (kind == 0) {  // the whole config
    tensors.folder.write("config.json", text);
    open(tensors.folder.path());
    return 0;
  }
  if (kind == 1) {  // changes to a valid config, which reach further
    const auto changes = Config::parse(text, "changes");
    if (!passes(changes)) return 0;
    config.merge_patch(changes->value());
    tensors.folder.write("config.json", config.dump());
    open(tensors.folder.path());
    return 0;
  }
  // A separate file next to a valid config.
  constexpr std::array kFiles = {"quantize_config.json",   "quant_config.json",
                                 "hf_quant_config.json",   "model.safetensors.index.json",
                                 "generation_config.json", "tokenizer_config.json"};
  if (kind < 5) config.erase("quantization_config");
  tensors.folder.write("config.json", config.dump());
  tensors.folder.write(kFiles[kind - 2], text);
  open(tensors.folder.path());
  tensors.remove(kFiles[kind - 2]);
  return 0;
}

}  // namespace moracle::testing::config_fuzz
