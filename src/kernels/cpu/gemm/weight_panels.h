// The panels of one matrix in layout vnni16, as micro-kernels read them: directly from
// memory, or unpacked one k-block at a time.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/ukernels/ukernels.h"
#include "kernels/weights/kernel_weights.h"
#include "layout/vnni16.h"

namespace moracle::cpu {

/// Maximum columns in one k-block of unpacked row blocks. Two panels of a k-block and the
/// activation rows stay in the first-level cache.
inline constexpr int64_t max_k_block(Operand arithmetic) {
  return arithmetic == Operand::kF32 ? 128 : arithmetic == Operand::kInt8 ? 512 : 256;
}

/// Columns whose products are summed before they are scaled. A segment is a whole row if no scale
/// applies before its end and codes need no unpacking. `x_group_cols`: columns that share an
/// activation scale; 0: a whole row.
int64_t segment_cols(const MatrixShape& shape, DotForm form, int64_t x_group_cols);

class WeightPanels {
 public:
  WeightPanels(const KernelWeights& weights, DotForm form, int64_t x_group_cols,
               const UkernelSet& kernels);

  int64_t num_panels() const { return num_panels_; }
  /// Start of a panel's codes.
  const std::byte* codes(int64_t expert, int64_t panel) const {
    return weights_.expert(expert) + weights_.sections.codes + panel * panel_bytes_;
  }

  /// Cache lines of a panel's codes.
  int64_t panel_blocks() const { return panel_bytes_ / kRowBlockBytes; }

  /// Columns that one call multiplies: whole segments, or the remainder of a segment at a row's
  /// end. Row blocks are counted as multiplied, after unpacking.
  struct KBlock {
    int64_t first_column = 0;
    int64_t first_block = 0;
    int64_t first_code_block = 0;  ///< the cache line of a panel's codes where it begins
    int64_t segment_blocks = 0;
    int segments = 1;
    int64_t segment = 0;  ///< index of the first segment in its row
    int64_t x_group = 0;  ///< index of the activations' scale group
    size_t first_call = 0, past_call = 0;
  };
  /// The k-blocks of a row, from left to right: the same for every panel.
  std::span<const KBlock> k_blocks() const { return k_blocks_; }
  int64_t segment_cols() const { return segment_cols_; }

  /// Row blocks of a k-block: the codes themselves, or unpacked into `scratch` (of kScratchBytes).
  /// `codes` is further scratch of kScratchBytes.
  const std::byte* row_blocks(int64_t expert, int64_t panel, const KBlock& s, std::byte* scratch,
                              std::byte* codes) const;
  /// Multiplied row blocks per row block of codes.
  int64_t blocks_per_code_block() const {
    return direct_ ? 1 : vnni16::block_cols(weights_.shape.key.dtype) / cols_per_block_;
  }
  static constexpr int64_t kScratchBytes = 128 * kPanelRows * 4;
  static constexpr int kMaxSegments = 32;  ///< per k-block

  /// Scales of a k-block, [segments][16], where products are scaled segment by segment. `scratch`
  /// receives scales that memory does not hold in this form. Null: no segment scales.
  const float* segment_scales(int64_t expert, int64_t panel, const KBlock& s, float* scratch) const;
  /// Prefetches the scales that segment_scales reads.
  void prefetch_scales(int64_t expert, int64_t panel, const KBlock& s) const;
  /// Zero points of a k-block, [segments][16]; `scratch` as above. Null: none, or part of the
  /// unpacked values.
  const int8_t* segment_zeros(int64_t expert, int64_t panel, const KBlock& s,
                              int8_t* scratch) const;
  /// Scales of whole rows, [16], applied in the epilogue. Null: none.
  const float* row_scales(int64_t expert, int64_t panel, float* scratch) const;
  const float* bias(int64_t expert, int64_t panel) const;
  /// Scales and minimums of a panel, stored as integers or f16. Null minimums: none.
  PanelSteps scale_steps(int64_t expert, int64_t panel) const {
    return steps_of(scales(expert, panel));
  }
  PanelSteps minimum_steps(int64_t expert, int64_t panel) const {
    return weights_.shape.key.minimums ? steps_of(minimums(expert, panel)) : PanelSteps{};
  }
  int64_t num_groups() const { return num_groups_; }
  int64_t group_cols() const { return group_cols_; }
  /// Minimums of `count` groups of a panel from `group` on, [count][16]. `scratch` has
  /// kMinimumScratch floats and receives minimums that memory does not hold as f32. Requires a key
  /// with minimums: row_scales then apply before the epilogue.
  const float* minimums(int64_t expert, int64_t panel, int64_t group, int64_t count,
                        float* scratch) const;
  /// Most groups per call of minimums().
  int64_t minimum_groups() const { return steps_ ? kMinimumGroups : num_groups_; }
  static constexpr int64_t kMinimumGroups = 32;
  static constexpr int64_t kMinimumScratch = 2 * kMinimumGroups * kPanelRows;
  /// Prefetches the minimums of a k-block.
  void prefetch_minimums(int64_t expert, int64_t panel, const KBlock& s) const;

 private:
  // Row blocks that one unpack kernel call unpacks: codes of one group, or of successive whole
  // groups.
  struct UnpackCall {
    int64_t code_at = 0, code_blocks = 0, group_blocks = 0, group = 0;
    int64_t to = 0;
  };
  int64_t group_of(int64_t column) const {
    return column / group_cols_ < num_groups_ ? column / group_cols_ : num_groups_ - 1;
  }
  // Integers hold twice the fp4 value. Exponents are halved when they become floats; with f32
  // scales the epilogue halves the sums.
  bool fp4_counts_twice() const {
    return weights_.shape.key.dtype == DType::kF4E2M1 &&
           (form_.x == Operand::kInt8 || form_.x == Operand::kInt16);
  }
  void
  cut();  // fills k_blocks_, unpack_calls_ and segment_groups_, so that later calls do not divide
  int64_t segments_from(int64_t column) const;
  void scales_of(int64_t expert, int64_t panel, int64_t group, float* scratch) const;
  // Scales of `count` groups from `group` on, each row's own, [count][16].
  void read_scales(int64_t expert, int64_t panel, int64_t group, int64_t count, float* to) const;
  void read_steps(const std::byte* panel, int64_t group, int64_t count, const float* plus,
                  float* to) const;
  PanelSteps steps_of(const std::byte* panel) const {
    const auto* const factors = reinterpret_cast<const uint16_t*>(panel);
    if (!steps_) return {factors};
    return {factors, reinterpret_cast<const int8_t*>(panel + vnni16::factor_bytes(weights_.shape))};
  }
  const std::byte* scales(int64_t expert, int64_t panel) const {
    return weights_.expert(expert) + weights_.sections.scales + panel * scale_bytes_;
  }
  const std::byte* minimums(int64_t expert, int64_t panel) const {
    return weights_.expert(expert) + weights_.sections.minimums + panel * minimum_bytes_;
  }
  void unpack(int64_t expert, int64_t panel, const UnpackCall& call, const std::byte* codes,
              std::byte* scratch) const;
  // Row blocks of int8 codes of a k-block, from those of a code set.
  void unpack(int64_t expert, int64_t panel, const KBlock& s, std::byte* to) const;

  const KernelWeights& weights_;
  const UkernelSet& kernels_;
  const UnpackKernel* unpack_;  // null: codes are multiplied as stored
  DotForm form_;
  int64_t num_panels_, panel_bytes_, num_groups_, group_cols_, x_group_cols_;
  int64_t scale_lanes_, scale_bytes_, minimum_bytes_;
  int64_t cols_per_block_, read_cols_, segment_cols_;  // of multiplied row blocks
  vnni16::Unit unit_;                                  // of stored codes
  bool set_;                                           // codes are numbers of a code set
  bool direct_;                                        // codes are multiplied without unpacking
  bool exponents_;                                     // scales are bytes that hold powers of two
  bool steps_;                                         // scales and minimums are integers
  bool floats_;                                        // scales are f32
  bool folded_;                                        // scales are part of the unpacked values
  bool whole_groups_;  // k-blocks consist of whole groups, which one call unpacks
  bool by_group_;      // codes of different groups are unpacked differently
  std::vector<KBlock> k_blocks_;
  std::vector<UnpackCall> unpack_calls_;
  std::vector<int64_t> segment_groups_;  // the group of each segment of a row
};

}  // namespace moracle::cpu
