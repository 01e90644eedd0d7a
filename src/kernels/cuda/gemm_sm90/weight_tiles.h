// Boxes of a matrix's weights that fill a stage: kBoxPanels panels of codes, scales and zero points
// each.
#pragma once

#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/tiles/arguments.h"

namespace moracle::cuda {

inline constexpr int kBoxPanels = 8;

struct WeightBoxes {
  TensorMap codes;    ///< [expert][panel][bytes of the panel / 8]
  TensorMap columns;  ///< the same codes: [expert][k-block][panel][bytes of a k-block / 8]
  TensorMap scales;   ///< [expert][panel][group · 16]
  TensorMap zeros;    ///< [expert][panel][group · 16]
  int groups;         ///< of a box of scales: the most that a stage touches
};

/// Describes the weights of `args` for stages of `stage_blocks` k-blocks. `block_bytes` is the size
/// of a k-block, `scale_bytes` of 16 scales; 0: no scales in groups.
Result<WeightBoxes> weight_boxes(const MmaArgs& args, int stage_blocks, int block_bytes,
                                 int scale_bytes);

}  // namespace moracle::cuda
