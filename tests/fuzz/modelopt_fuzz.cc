// libFuzzer: mutated checkpoints of ModelOpt.
#include "checkpoint/producers/modelopt_synthetic.h"
#include "fuzz/checkpoint_fuzz.h"

namespace moracle::testing::modelopt_fuzz {

static SyntheticCheckpoint mixed() {
  SyntheticCheckpoint checkpoint = modelopt("MXFP8", 32);
  nlohmann::json& quantization = checkpoint.quantization();
  quantization["quant_algo"] = "MIXED_PRECISION";
  quantization["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
  quantization["quantized_layers"] = {
      {"model.layers.0.mlp.experts", {{"quant_algo", "MXFP8"}, {"group_size", 32}}},
      {"model.layers.*.self_attn.[qkv]_proj", {{"quant_algo", "MXFP8"}}}};
  checkpoint.add("model.layers.0.self_attn.k_scale", DType::kF32, {}, std::vector<float>{0.5f});
  return checkpoint;
}

int run(const uint8_t* data, size_t size) {
  static const std::vector<SyntheticCheckpoint> bases = {
      modelopt("FP8", 32), modelopt("MXFP8", 32), modelopt("FP8_PB_WO", 32),
      modelopt("FP8_PER_CHANNEL_PER_TOKEN", 32), mixed()};
  fuzz_checkpoint(bases, data, size);
  return 0;
}

}  // namespace moracle::testing::modelopt_fuzz
