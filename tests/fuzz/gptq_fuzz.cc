// libFuzzer: mutated checkpoints of GPTQ.
#include "fuzz/checkpoint_fuzz.h"

using namespace moracle::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<SyntheticCheckpoint> bases = {
      SyntheticCheckpoint::gptq({}, kTiny),
      SyntheticCheckpoint::gptq({.bits = 8, .symmetric = false}, kTiny),
      SyntheticCheckpoint::gptq({.symmetric = false, .v2 = true, .desc_act = true}, kTiny),
      SyntheticCheckpoint::gptq({.group_size = -1}, kTiny)};
  fuzz_checkpoint(bases, data, size);
  return 0;
}
