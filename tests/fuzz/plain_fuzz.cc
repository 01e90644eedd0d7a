// libFuzzer: mutated checkpoints without quantization, with one tensor per expert or for all
// experts.
#include "checkpoint/producers/mxfp4_synthetic.h"
#include "fuzz/checkpoint_fuzz.h"

namespace moracle::testing::plain_fuzz {

int run(const uint8_t* data, size_t size) {
  static const std::vector<SyntheticCheckpoint> bases = {SyntheticCheckpoint::plain(kTiny),
                                                         fused_plain(true), fused_plain(false)};
  fuzz_checkpoint(bases, data, size);
  return 0;
}

}  // namespace moracle::testing::plain_fuzz
