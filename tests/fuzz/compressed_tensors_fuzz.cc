// libFuzzer: mutated checkpoints of compressed-tensors.
#include "checkpoint/producers/ct_synthetic.h"
#include "fuzz/checkpoint_fuzz.h"

namespace moracle::testing::compressed_tensors_fuzz {

int run(const uint8_t* data, size_t size) {
  static const std::vector<SyntheticCheckpoint> bases = {
      SyntheticCheckpoint::int8(kTiny),
      ct_checkpoint({}),
      ct_checkpoint({.symmetric = false, .actorder = "group"}),
      ct_checkpoint({.bits = 8, .strategy = "channel"}),
      ct_checkpoint(
          {.format = "int-quantized", .bits = 8, .strategy = "channel", .activations = "token"}),
      ct_checkpoint(
          {.format = "float-quantized", .bits = 8, .strategy = "tensor", .activations = "tensor"}),
      ct_checkpoint({.format = "float-quantized", .bits = 8, .strategy = "channel"}),
      ct_checkpoint(
          {.format = "float-quantized", .bits = 8, .strategy = "block", .activations = "group"}),
      ct_mxfp8_checkpoint(32),
      ct_mxfp8_checkpoint(32, false),
      ct_checkpoint({.activations = "token", .activation_type = "float"}),
      ct_checkpoint({.format = "int-quantized",
                     .symmetric = false,
                     .actorder = "group",
                     .activations = "token"})};
  fuzz_checkpoint(bases, data, size);
  return 0;
}

}  // namespace moracle::testing::compressed_tensors_fuzz
