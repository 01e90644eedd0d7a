// libFuzzer: checkpoints of ModelOpt, changed.
#include "checkpoint/producers/modelopt_synthetic.h"
#include "fuzz/checkpoint_fuzz.h"

using namespace moracle::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<SyntheticCheckpoint> bases = {modelopt("FP8", 32), modelopt("MXFP8", 32),
                                                         modelopt("FP8_PB_WO", 32),
                                                         modelopt("FP8_PER_CHANNEL_PER_TOKEN", 32)};
  fuzz_checkpoint(bases, data, size);
  return 0;
}
