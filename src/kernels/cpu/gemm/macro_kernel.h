// The macro-kernel: a row tile times a pair of panels, over all k-blocks.
#pragma once

#include "kernels/cpu/gemm/pack_rows.h"
#include "kernels/cpu/gemm/weight_panels.h"
#include "kernels/cpu/simd/vector_ops.h"

namespace moracle::cpu {

/// Maximum rows per row tile: all of them meet a decoded k-block before the next k-block is
/// decoded.
inline constexpr int kTileRows = 320;

/// Rows finished per call, so that keep_awake can run in between.
inline constexpr int kStoreRows = 16;

/// The second panel lies `distance` panels behind the first; 0: there is no second panel.
struct PanelPair {
  int64_t expert = 0, panel = 0, distance = 0;
  int panels() const { return distance > 0 ? 2 : 1; }
};

struct RowTile {
  const PackedRows& x;
  int64_t first;
  int count;       ///< at most kTileRows
  PanelPair next;  ///< panels to prefetch during this row tile
  bool prefetch;
};

/// Scratch of one thread for its row tiles.
struct TileScratch {
  alignas(64) float sums[2][kTileRows * kPanelRows];
  alignas(64) std::byte row_blocks[2][WeightPanels::kScratchBytes];
  alignas(64) float segment_scales[2][WeightPanels::kMaxSegments * kPanelRows];
  alignas(64) int8_t segment_zeros[2][WeightPanels::kMaxSegments * kPanelRows];
  alignas(64) float scales[2][kPanelRows];
};

/// The micro-kernel that multiplies codes of this type in this form; null: none.
const DotKernel* dot_of(const UkernelSet& kernels, LineForm form, DType codes);

/// A kernel's name in plans. `two_terms`: see DotArgs::x_low.
std::string gemm_kernel_name(DType codes, LineForm form, bool two_terms, const UkernelSet& kernels);

/// Multiplies a matrix in one form.
class MacroKernel {
 public:
  /// `weights` and `kernels` must outlive the object. `serves` must be true for this form.
  MacroKernel(const KernelWeights& weights, LineForm form, const UkernelSet& kernels);
  static bool serves(const MatrixShape& shape, const Scheme& scheme, LineForm form,
                     const UkernelSet& kernels);

  const WeightPanels& panels() const { return panels_; }
  const MatrixShape& shape() const { return weights_.shape; }
  std::string name(bool two_terms) const {
    return gemm_kernel_name(weights_.shape.key.dtype, form_, two_terms, kernels_);
  }
  /// Fills scratch.sums.
  void multiply(const PanelPair& pair, const RowTile& tile, TileScratch& scratch) const;
  /// The epilogue for the sums of panel p of the pair. The caller sets the destination.
  StoreArgs result(const PanelPair& pair, int p, const RowTile& tile, TileScratch& scratch) const;

 private:
  /// Packed rows per row.
  int limbs() const { return form_.in_parts ? kLimbs : 1; }
  void add_limbs(int rows, float* sums) const;
  /// Makes `block`, which begins at cache line `first_block` of its panels, prefetch ahead of
  /// itself.
  void prefetch_ahead(const PanelPair& pair, const RowTile& tile, int64_t first_block,
                      DotArgs& block) const;

  const KernelWeights& weights_;
  LineForm form_;
  const UkernelSet& kernels_;
  const DotKernel& dot_;
  int prefetch_distance_;
  WeightPanels panels_;
  bool x_group_is_segment_;
  int scale_rows_;
};

/// Columns that share a scale of the activations; 0: whole rows, or none are quantized.
int64_t x_group_cols(const Scheme& scheme);

}  // namespace moracle::cpu
