// Scales and bias of a tile's outputs, which producers copy to shared memory: an epilogue that
// loaded them would wait for those of each panel.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/gemm_sm90/wgmma_tile.cuh"
#include "kernels/cuda/tiles/tile_finder.cuh"

namespace moracle::cuda {

/// Vectors of 16 bytes, panel after panel: 16 exponents, or four times four floats.
template <class Tile>
class OutputVectors {
 public:
  static constexpr int kMost = 4 * Tile::kAllPanels;

  __device__ static OutputVectors scales(const WgmmaArgs& a, const WorkTile& tile) {
    return {a, tile, a.scales_at, a.scale_is_exponent ? 1 : 4};
  }
  __device__ static OutputVectors bias(const WgmmaArgs& a, const WorkTile& tile) {
    return {a, tile, a.bias_at, 4};
  }

  /// Those of a TMA tile of weights are contiguous, up to the last panel.
  __device__ const uint4* tile(int tile) const {
    return from_ + panels_[tile * kTmaPanels] * each_;
  }
  __device__ int tile_bytes(int tile) const {
    return max(0, min(last_ + 1 - panels_[tile * kTmaPanels], kTmaPanels)) * each_ * 16;
  }
  __device__ int most_tile_bytes() const { return kTmaPanels * each_ * 16; }

  __device__ int count() const { return each_ * Tile::kAllPanels; }
  /// Outputs past the matrix have values of its last panel, and are not stored.
  __device__ const uint4* at(int vector) const {
    return from_ + min(panels_[vector / each_], last_) * each_ + vector % each_;
  }

 private:
  __device__ OutputVectors(const WgmmaArgs& a, const WorkTile& tile, int64_t at, int each)
      : panels_(a, tile),
        last_(a.panels - 1),
        each_(each),
        from_(reinterpret_cast<const uint4*>(a.base + tile.expert * a.expert_bytes + at)) {}

  const TilePanels<Tile> panels_;
  int last_, each_;
  const uint4* from_;
};

}  // namespace moracle::cuda
