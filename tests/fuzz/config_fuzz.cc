// libFuzzer: no config.json, quantization config or shard index may crash what opens and describes
// a checkpoint. The tensors are those of tiny valid checkpoints, written once.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "moracle/checkpoint.h"
#include "moracle/model.h"

namespace {

using moracle::testing::SyntheticCheckpoint;
using moracle::testing::SyntheticSize;
using moracle::testing::TemporaryFolder;

void require(bool holds) {
  if (!holds) std::abort();
}

/// Errors have to say something, and not all of a file.
template <class T>
bool passes(const moracle::Result<T>& result) {
  if (result) return true;
  const std::string line = result.error().to_string();
  require(!line.empty() && line.size() < 1 << 16 && line.find('\n') == line.npos);
  return false;
}

struct Base {
  SyntheticCheckpoint checkpoint;
  TemporaryFolder folder;

  explicit Base(SyntheticCheckpoint made) : checkpoint(std::move(made)) {
    require(checkpoint.write(folder.path()).ok());
  }
  void remove(const char* file) const { std::filesystem::remove(folder.path() + "/" + file); }
};

/// Opens, describes and reads all there is.
void open(const std::string& folder) {
  const auto checkpoint = moracle::Checkpoint::open(folder);
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
  passes(moracle::GenerationConfig::open(*checkpoint));
}

const Base& base(size_t index) {
  static const SyntheticSize size{.layers = 1,
                                  .experts = 2,
                                  .top_k = 1,
                                  .hidden = 16,
                                  .intermediate = 8,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .head_dim = 8,
                                  .vocab = 4};
  static const std::array<Base, 4> bases = {
      Base(SyntheticCheckpoint::plain(size)), Base(SyntheticCheckpoint::gptq({}, size)),
      Base(SyntheticCheckpoint::gptq({.symmetric = false, .desc_act = true}, size)),
      Base(SyntheticCheckpoint::int8(size))};
  return bases[index % bases.size()];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Base& tensors = base(data[0]);
  nlohmann::json config = tensors.checkpoint.config;
  switch (data[0] / 4 % 4) {
    case 0:  // the whole config
      tensors.folder.write("config.json", text);
      open(tensors.folder.path());
      break;
    case 1: {  // changes to a valid config, which reach further
      const auto changes = moracle::Config::parse(text, "changes");
      if (!passes(changes)) return 0;
      config.merge_patch(changes->value());
      tensors.folder.write("config.json", config.dump());
      open(tensors.folder.path());
      break;
    }
    case 2:  // the quantization config in a file of its own
      config.erase("quantization_config");
      tensors.folder.write("config.json", config.dump());
      tensors.folder.write("quantize_config.json", text);
      open(tensors.folder.path());
      tensors.remove("quantize_config.json");
      break;
    default:  // an index of shards
      tensors.folder.write("config.json", config.dump());
      tensors.folder.write("model.safetensors.index.json", text);
      open(tensors.folder.path());
      tensors.remove("model.safetensors.index.json");
  }
  return 0;
}
