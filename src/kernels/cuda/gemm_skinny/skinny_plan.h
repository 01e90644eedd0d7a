// Plans skinny GEMMs: linear layers of some tokens. Plain C++, so that builds without CUDA can plan
// them, too.
#pragma once

#include "oracle/kernel_plan.h"

namespace moracle::cuda {

inline constexpr int kMostSkinnyTokens = 64, kMostSkinnyWarps = 12, kMostSkinnyCluster = 8;
/// k-blocks of a chunk of x, and the most chunks of a CTA's share.
inline constexpr int kSkinnyChunk = 4, kMostSkinnyChunks = 32;
/// Shared memory of a CTA, at most: what Hopper allows.
inline constexpr int kMostSkinnyBytes = 227 * 1024;
/// Barriers at the begin of shared memory.
inline constexpr int kSkinnyBarrierBytes = 8 * (kMostSkinnyWarps / 2 + kMostSkinnyChunks + 1);

/// How CTAs share a matrix, and the layout of their shared memory.
struct SkinnySplit {
  int tile_panels;                   ///< panels of 16 outputs of a tile, two for each pair of warps
  int cluster;                       ///< CTAs that split K of a tile
  int share_blocks;                  ///< k-blocks of a CTA, in whole chunks
  int chunks;                        ///< of a share
  int share_groups, share_x_groups;  ///< groups with scales that a share touches, at most
  int x_row_bytes;
  int codes_at, scales_at, zeros_at, x_at, x_scales_at, sums_at;
  int bytes;  ///< 0: nothing fits into shared memory
};

/// The fastest split for kernels of `octets` octets of tokens on a GPU with `num_sms` SMs.
/// `only_cluster`, `only_panels`: of these sizes; 0: any.
SkinnySplit skinny_split(const MatrixShape& shape, const Scheme& scheme, int octets, int num_sms,
                         int only_cluster = 0, int only_panels = 0);

/// Octets of the smallest kernel for `tokens` tokens: 4 or 8.
constexpr int skinny_octets(int64_t tokens) {
  return tokens <= 32 ? 4 : 8;
}

/// True if the kernels multiply these types and the matrix fits.
bool skinny_serves(const MatrixShape& shape, const Scheme& scheme);

/// The kernel for `tokens` tokens.
CudaForm skinny_form(const Scheme& scheme, int64_t tokens);

}  // namespace moracle::cuda
