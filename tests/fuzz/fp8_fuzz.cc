// libFuzzer: mutated checkpoints of quant_method "fp8".
#include "checkpoint/producers/fp8_synthetic.h"
#include "checkpoint/producers/modelopt_synthetic.h"
#include "fuzz/checkpoint_fuzz.h"

namespace moracle::testing::fp8_fuzz {

static SyntheticCheckpoint mxfp8() {
  SyntheticCheckpoint checkpoint = modelopt("MXFP8", 32);
  checkpoint.quantization() = {{"quant_method", "mxfp8"}, {"weight_block_size", {1, 32}}};
  return checkpoint;
}

int run(const uint8_t* data, size_t size) {
  static const std::vector<SyntheticCheckpoint> bases = {fp8(GroupShape{}), fp8(moracle::kPerRow),
                                                         fp8({8, 16}), fp8({12, 20}), mxfp8()};
  fuzz_checkpoint(bases, data, size);
  return 0;
}

}  // namespace moracle::testing::fp8_fuzz
