// Describes the weights of a matrix as TMA tiles.
#include <algorithm>

#include "base/try.h"
#include "kernels/cuda/gemm_sm90/wgmma_args.h"

namespace moracle::cuda {
namespace {

// Kernels unpack whole stages. Scales past the end of a row must be there, as zeros: codes there
// are zeros, too, but the product of 0 and what else lies in shared memory may be NaN.
int most_groups(const GemmArgs& args, int stage_blocks) {
  const int group = args.weight_groups.blocks, sub_blocks = args.sub_blocks;
  int most = 1;
  for (int first = 0; first < args.blocks; first += stage_blocks) {
    const int end = first + stage_blocks;
    most = std::max(most, (end * sub_blocks - 1) / group - first * sub_blocks / group + 1);
  }
  return most;
}

}  // namespace

Result<WeightTiles> weight_tiles(const GemmArgs& args, int stage_blocks, int block_bytes,
                                 int scale_bytes) {
  WeightTiles tma{};
  if (args.num_experts == 0) return tma;  // a layer without slots, or a rank without experts
  const int64_t panel_bytes = int64_t{args.blocks} * block_bytes;
  MORACLE_TRY(tma.codes, make_tensor_map({args.base,
                                          8,
                                          3,
                                          {panel_bytes / 8, args.panels, args.num_experts, 1},
                                          {panel_bytes, args.expert_bytes, 0},
                                          {stage_blocks * block_bytes / 8, kTmaPanels, 1, 1}}));
  MORACLE_TRY(tma.columns,
              make_tensor_map({args.base,
                               8,
                               4,
                               {block_bytes / 8, args.panels, args.blocks, args.num_experts},
                               {panel_bytes, block_bytes, args.expert_bytes},
                               {block_bytes / 8, kTmaPanels, stage_blocks, 1}}));
  if (scale_bytes == 0) return tma;
  tma.groups = most_groups(args, stage_blocks);
  const int64_t groups = args.weight_groups.count;
  // The groups of a panel are contiguous, so load them as one run: a TMA load of few bytes takes as
  // long as one of many.
  const auto in_groups = [&](int64_t at, int bytes) {
    return make_tensor_map({args.base + at,
                            bytes / 16,
                            3,
                            {groups * 16, args.panels, args.num_experts, 1},
                            {groups * bytes, args.expert_bytes, 0},
                            {tma.groups * 16, kTmaPanels, 1, 1}});
  };
  MORACLE_TRY(tma.scales, in_groups(args.scales_at, scale_bytes));
  if (args.has_zeros) {
    MORACLE_TRY(tma.zeros, in_groups(args.zeros_at, 16));
  }
  if (args.has_minimums) {
    MORACLE_TRY(tma.minimums, in_groups(args.minimums_at, 64));
  }
  return tma;
}

}  // namespace moracle::cuda
