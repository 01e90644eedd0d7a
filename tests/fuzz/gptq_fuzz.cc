// libFuzzer: mutated checkpoints of GPTQ.
#include "fuzz/checkpoint_fuzz.h"

namespace moracle::testing::gptq_fuzz {

int run(const uint8_t* data, size_t size) {
  static const std::vector<SyntheticCheckpoint> bases = {
      SyntheticCheckpoint::gptq({}, kTiny),
      SyntheticCheckpoint::gptq({.bits = 8, .symmetric = false}, kTiny),
      SyntheticCheckpoint::gptq({.symmetric = false, .v2 = true, .desc_act = true}, kTiny),
      SyntheticCheckpoint::gptq({.group_size = -1}, kTiny)};
  fuzz_checkpoint(bases, data, size);
  return 0;
}

}  // namespace moracle::testing::gptq_fuzz
