// libFuzzer: mutated checkpoints of AutoRound.
#include "fuzz/checkpoint_fuzz.h"

namespace moracle::testing::auto_round_fuzz {

namespace {

SyntheticCheckpoint auto_round(const SyntheticGptq& format, const char* form) {
  auto checkpoint = SyntheticCheckpoint::gptq(format, kTiny);
  checkpoint.quantization() = {{"quant_method", "auto-round"},
                               {"bits", format.bits},
                               {"group_size", format.group_size},
                               {"sym", format.symmetric},
                               {"packing_format", form},
                               {"block_name_to_quantize", "model.layers"},
                               {"extra_config",
                                {{"lm_head", {{"bits", 16}, {"data_type", "float"}}},
                                 {".*o_proj.*", {{"group_size", format.group_size}}}}}};
  return checkpoint;
}

}  // namespace

int run(const uint8_t* data, size_t size) {
  static const std::vector<SyntheticCheckpoint> bases = {
      auto_round({}, "auto_round:auto_gptq"),
      auto_round({.bits = 8, .symmetric = false, .v2 = true}, "auto_round:gptqmodel")};
  fuzz_checkpoint(bases, data, size);
  return 0;
}

}  // namespace moracle::testing::auto_round_fuzz
