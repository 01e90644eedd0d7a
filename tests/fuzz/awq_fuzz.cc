// libFuzzer: mutated checkpoints of AWQ.
#include "checkpoint/producers/awq_synthetic.h"
#include "fuzz/checkpoint_fuzz.h"

namespace moracle::testing::awq_fuzz {

int run(const uint8_t* data, size_t size) {
  static const std::vector<SyntheticCheckpoint> bases = {
      awq_checkpoint(), awq_checkpoint({.zero_point = false}), awq_checkpoint({.group_size = -1})};
  fuzz_checkpoint(bases, data, size);
  return 0;
}

}  // namespace moracle::testing::awq_fuzz
