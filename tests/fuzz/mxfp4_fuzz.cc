// libFuzzer: mutated checkpoints with all experts of a layer in one MXFP4 tensor.
#include "checkpoint/producers/mxfp4_synthetic.h"
#include "fuzz/checkpoint_fuzz.h"

using namespace moracle::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<SyntheticCheckpoint> bases = {mxfp4(), mxfp4(false)};
  fuzz_checkpoint(bases, data, size);
  return 0;
}
