// The panels of one matrix in layout vnni16, as the line kernels read them: directly from memory,
// or decoded one stretch at a time.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/ukernels/ukernels.h"
#include "kernels/weights/kernel_weights.h"
#include "layout/vnni16.h"

namespace moracle::cpu {

/// Maximum columns in one stretch of decoded lines. Two panels of a stretch and the activation rows
/// stay in the first-level cache.
inline constexpr int64_t max_stretch(LineArithmetic arithmetic) {
  return arithmetic == LineArithmetic::kF32 ? 128 : arithmetic == LineArithmetic::kInt8 ? 512 : 256;
}

/// How a panel is multiplied: the arithmetic, and whether CodeKernels multiply the codes directly,
/// without decoded lines.
struct LineForm {
  LineArithmetic arithmetic = LineArithmetic::kF32;
  bool by_codes = false;
  bool in_parts = false;  ///< floats as kFloatParts rows of int8 (LineArithmetic::kInt8)
};

/// Columns whose products are summed before they are scaled. A unit is a whole row if no scale
/// applies before its end and codes need no decoding. `x_group_cols`: columns that share an
/// activation scale; 0: a whole row.
int64_t unit_cols(const MatrixShape& shape, LineForm form, int64_t x_group_cols);

class LinePanels {
 public:
  LinePanels(const KernelWeights& weights, LineForm form, int64_t x_group_cols,
             const LineDecoders& decoders, void (*keep_awake)());

  int64_t num_panels() const { return num_panels_; }
  /// Start of a panel's codes.
  const std::byte* codes(int64_t expert, int64_t panel) const {
    return weights_.expert(expert) + weights_.sections.codes + panel * panel_bytes_;
  }

  /// Cache lines of a panel's codes.
  int64_t panel_lines() const { return panel_bytes_ / kLineBytes; }

  /// Columns that one call multiplies: whole units, or the remainder of a unit at a row's end.
  /// Lines are counted as multiplied, after decoding.
  struct Stretch {
    int64_t first_column = 0;
    int64_t first_line = 0;
    int64_t unit_lines = 0;
    int units = 1;
    int64_t unit = 0;     ///< index of the first unit in its row
    int64_t x_group = 0;  ///< index of the activations' scale group
    size_t first_piece = 0, past_piece = 0;
  };
  /// The stretches of a row, from left to right: the same for every panel.
  std::span<const Stretch> stretches() const { return stretches_; }
  int64_t unit_cols() const { return unit_cols_; }

  /// Lines of a stretch: the codes themselves, or decoded into `scratch` (of kScratchBytes).
  const std::byte* lines(int64_t expert, int64_t panel, const Stretch& s, std::byte* scratch) const;
  /// Multiplied lines per line of codes.
  int64_t lines_per_code_line() const {
    return direct_ ? 1 : vnni16::line_cols(weights_.shape.key.dtype) / cols_per_line_;
  }
  static constexpr int64_t kScratchBytes = 128 * kLineRows * 4;
  static constexpr int kMaxUnits = 32;  ///< per stretch

  /// Scales of a stretch, [units][16], where products are scaled unit by unit. `scratch` receives
  /// scales that memory does not hold in this form. Null: no unit scales.
  const float* unit_scales(int64_t expert, int64_t panel, const Stretch& s, float* scratch) const;
  /// Prefetches the scales that unit_scales reads.
  void prefetch_scales(int64_t expert, int64_t panel, const Stretch& s) const;
  /// Zero points of a stretch, [units][16], likewise. Null: none, or part of the decoded values.
  const int8_t* unit_zeros(int64_t expert, int64_t panel, const Stretch& s, int8_t* scratch) const;
  /// Scales of whole rows, [16], applied in the epilogue. Null: none.
  const float* row_scales(int64_t expert, int64_t panel, float* scratch) const;
  const float* bias(int64_t expert, int64_t panel) const;

 private:
  // Lines that one decoder call decodes: codes of one group, or of successive whole groups.
  struct Piece {
    int64_t code_at = 0, code_lines = 0, group_lines = 0, group = 0;
    int64_t to = 0, lines = 0;
  };
  int64_t group_of(int64_t column) const {
    return column / group_cols_ < num_groups_ ? column / group_cols_ : num_groups_ - 1;
  }
  // Integers hold twice the fp4 value. Exponents are halved when they become floats; with f32
  // scales the epilogue halves the sums.
  bool fp4_counts_twice() const {
    return weights_.shape.key.dtype == DType::kF4E2M1 &&
           (form_.arithmetic == LineArithmetic::kInt8 ||
            form_.arithmetic == LineArithmetic::kInt16);
  }
  void cut();  // fills stretches_, pieces_ and unit_groups_, so that later calls do not divide
  int64_t units_from(int64_t column) const;
  void scales_of(int64_t expert, int64_t panel, int64_t group, float* scratch) const;
  void decode(int64_t expert, int64_t panel, const Piece& piece, std::byte* scratch) const;

  const KernelWeights& weights_;
  const LineDecoders& decoders_;
  void (*decode_)(const LineCodes&);  // null: codes are multiplied as stored
  void (*keep_awake_)();
  LineForm form_;
  int64_t num_panels_, panel_bytes_, num_groups_, group_cols_, x_group_cols_;
  int64_t scale_lanes_;
  int64_t cols_per_line_, read_cols_, unit_cols_;  // of multiplied lines
  bool direct_;                                    // codes are multiplied without decoding
  bool exponents_;                                 // scales are bytes that hold powers of two
  bool folded_;                                    // scales are part of the decoded values
  bool whole_groups_;  // stretches consist of whole groups, which one call decodes
  bool by_group_;      // codes of different groups are decoded differently
  std::vector<Stretch> stretches_;
  std::vector<Piece> pieces_;
  std::vector<int64_t> unit_groups_;  // the group of each unit of a row
};

}  // namespace moracle::cpu
