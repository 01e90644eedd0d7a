// The macro-kernel: a row tile times a pair of panels, over all k-blocks.
#pragma once

#include "kernels/cpu/gemm/pack_rows.h"
#include "kernels/cpu/gemm/weight_panels.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "oracle/forms/kernel_form.h"

namespace moracle::cpu {

/// Maximum rows per row tile: all of them are multiplied by an unpacked k-block before the next
/// k-block is unpacked.
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

/// The sums of a row tile for each panel of a pair, and scratch for the scales of its result.
struct TileSums {
  alignas(64) float of[2][kTileRows * kPanelRows];
  alignas(64) float scales[2][kPanelRows];
};

/// Scratch of one thread for its row tiles. The sums of one tile are finished while the next ones
/// are computed.
struct TileScratch {
  TileSums sums[2];
  alignas(64) std::byte row_blocks[2][WeightPanels::kScratchBytes];
  alignas(64) std::byte codes[WeightPanels::kScratchBytes];
  alignas(64) float segment_scales[2][WeightPanels::kMaxSegments * kPanelRows];
  alignas(64) float minimums[WeightPanels::kMinimumScratch];
  alignas(64) int8_t segment_zeros[2][WeightPanels::kMaxSegments * kPanelRows];
};

/// Work that a macro-kernel does between two products: part `part` of `parts`.
struct WorkBetween {
  void (*call)(const void* work, int part, int parts) = nullptr;
  const void* work = nullptr;

  template <class Work>
  static WorkBetween of(const Work& work) {
    return {[](const void* w, int part, int parts) { (*static_cast<const Work*>(w))(part, parts); },
            &work};
  }
};

/// How the panels of such weights store scales, where kernels may read them as stored.
StoredScales stored_scales(const QuantKey& key);

/// The micro-kernel that multiplies codes of this type in this form; null: none.
const DotKernel* dot_of(const UkernelSet& kernels, DotForm form, DType codes);

/// The instruction that multiplies in this form, named as in the measured limits. "none" for layers
/// that the row refuses, whose memory a rule still counts.
std::string_view instruction_of(const UkernelSet& kernels, const DotForm& form,
                                const QuantKey& key);

/// Multiplies a matrix in one form.
class MacroKernel {
 public:
  /// `weights` and `kernels` must outlive the object. `serves` must be true for this form.
  MacroKernel(const KernelWeights& weights, const CpuDotForm& form, const UkernelSet& kernels);
  static bool serves(const MatrixShape& shape, const Scheme& scheme, DotForm form,
                     const UkernelSet& kernels);

  const WeightPanels& panels() const { return panels_; }
  const MatrixShape& shape() const { return weights_.shape; }
  const CpuDotForm& planned() const { return planned_; }
  /// True if multiply() does other work between its products: a tile product runs for many cycles
  /// beside other instructions.
  bool does_work_between() const { return steps_ == nullptr && kernels_.keep_awake != nullptr; }
  /// Fills `sums`. Does all parts of the work between if does_work_between().
  void multiply(const PanelPair& pair, const RowTile& tile, const WorkBetween& between,
                TileScratch& scratch, TileSums& sums) const;
  /// The epilogue for the sums of panel p of the pair. The caller sets the destination.
  StoreArgs result(const PanelPair& pair, int p, const RowTile& tile, TileSums& sums) const;

 private:
  /// Packed rows per row.
  int limbs() const { return form_.in_limbs ? kLimbs : 1; }
  void multiply_steps(const PanelPair& pair, const RowTile& tile, TileSums& sums) const;
  void add_limbs(int rows, float* sums) const;
  void subtract_minimums(const PanelPair& pair, const RowTile& tile, TileScratch& scratch,
                         TileSums& sums) const;
  /// Makes `block`, which begins at cache line `first_block` of its panels, prefetch ahead of
  /// itself.
  void prefetch_ahead(const PanelPair& pair, const RowTile& tile, int64_t first_block,
                      DotArgs& block) const;

  const KernelWeights& weights_;
  CpuDotForm planned_;
  DotForm form_;
  const UkernelSet& kernels_;
  const DotKernel* dot_;     // null: steps_
  const StepKernel* steps_;  // null: dot_
  int prefetch_distance_;
  WeightPanels panels_;
  bool x_group_is_segment_;
  int scale_rows_;
};

/// Columns that share a scale of the activations; 0: whole rows, or none are quantized.
int64_t x_group_cols(const Scheme& scheme);

}  // namespace moracle::cpu
