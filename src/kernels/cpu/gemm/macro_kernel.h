// One pass: some rows of an expert times a pair of its panels, over all columns.
#pragma once

#include "kernels/cpu/gemm/weight_panels.h"
#include "kernels/cpu/gemm/pack_rows.h"
#include "kernels/cpu/simd/vector_ops.h"

namespace moracle::cpu {

/// Maximum rows per pass: all of them meet a decoded stretch before the next stretch is decoded.
inline constexpr int kPassRows = 320;

/// Rows finished per call, so that keep_awake can run in between.
inline constexpr int kResultRows = 16;

/// The second panel lies `distance` panels behind the first; 0: there is no second panel.
struct PanelPair {
  int64_t expert = 0, panel = 0, distance = 0;
  int panels() const { return distance > 0 ? 2 : 1; }
};

struct Pass {
  const PackedRows& x;
  int64_t first;
  int count;       ///< at most kPassRows
  PanelPair next;  ///< panels to prefetch during this pass
  bool prefetch;
};

/// Scratch of one thread for its passes.
struct PassScratch {
  alignas(64) float sums[2][kPassRows * kLineRows];
  alignas(64) std::byte lines[2][LinePanels::kScratchBytes];
  alignas(64) float unit_scales[2][LinePanels::kMaxUnits * kLineRows];
  alignas(64) int8_t unit_zeros[2][LinePanels::kMaxUnits * kLineRows];
  alignas(64) float scales[2][kLineRows];
};

/// A kernel's name in plans. `two_parts`: see LineBlock::x_rest.
std::string line_kernel_name(DType codes, LineForm form, bool two_parts,
                             const LineKernels& kernels);

/// Multiplies a matrix in one form.
class LinePass {
 public:
  /// `weights` and `kernels` must outlive the object. `serves` must be true for this form.
  LinePass(const KernelWeights& weights, LineForm form, const LineKernels& kernels);
  static bool serves(const MatrixShape& shape, const Scheme& scheme, LineForm form,
                     const LineKernels& kernels);

  const LinePanels& panels() const { return panels_; }
  const MatrixShape& shape() const { return weights_.shape; }
  std::string name(bool two_parts) const {
    return line_kernel_name(weights_.shape.key.dtype, form_, two_parts, kernels_);
  }
  /// Fills scratch.sums.
  void multiply(const PanelPair& pair, const Pass& pass, PassScratch& scratch) const;
  /// The epilogue for the sums of panel p of the pair. The caller sets the destination.
  StoreArgs result(const PanelPair& pair, int p, const Pass& pass, PassScratch& scratch) const;

 private:
  using Kernel = void (*)(const LineBlock&);
  /// Packed rows per row.
  int parts() const { return form_.in_parts ? kFloatParts : 1; }
  void add_parts(int rows, float* sums) const;
  /// Asks `block`, which begins at cache line `first_line` of its panels, to prefetch ahead of
  /// itself.
  void prefetch_ahead(const PanelPair& pair, const Pass& pass, int64_t first_line,
                      LineBlock& block) const;
  static Kernel kernel_of(const LineKernels& kernels, LineForm form, DType codes);

  const KernelWeights& weights_;
  LineForm form_;
  const LineKernels& kernels_;
  Kernel kernel_;
  int row_block_, lines_ahead_;
  LinePanels panels_;
  bool x_group_is_unit_;
  int scale_rows_;
};

/// Columns that share a scale of the activations; 0: whole rows, or none are quantized.
int64_t x_group_cols(const Scheme& scheme);

}  // namespace moracle::cpu
