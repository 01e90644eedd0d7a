// libFuzzer: checkpoints without quantization, changed; experts each by itself or all in one
// tensor.
#include "checkpoint/producers/mxfp4_synthetic.h"
#include "fuzz/checkpoint_fuzz.h"

using namespace moracle::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<SyntheticCheckpoint> bases = {SyntheticCheckpoint::plain(kTiny),
                                                         fused_plain(true), fused_plain(false)};
  fuzz_checkpoint(bases, data, size);
  return 0;
}
