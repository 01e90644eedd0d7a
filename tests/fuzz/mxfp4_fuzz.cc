// libFuzzer: mutated checkpoints with all experts of a layer in one MXFP4 tensor.
#include "checkpoint/producers/mxfp4_synthetic.h"
#include "fuzz/checkpoint_fuzz.h"

namespace moracle::testing::mxfp4_fuzz {

int run(const uint8_t* data, size_t size) {
  static const std::vector<SyntheticCheckpoint> bases = {mxfp4(), mxfp4(false)};
  fuzz_checkpoint(bases, data, size);
  return 0;
}

}  // namespace moracle::testing::mxfp4_fuzz
