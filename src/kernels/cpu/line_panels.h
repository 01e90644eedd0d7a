// The panels of one matrix in layout vnni16 as the line kernels take them: straight from memory, or
// decoded stretch by stretch.
#pragma once

#include "kernels/cpu/lines.h"
#include "kernels/kernel_weights.h"
#include "layout/vnni16.h"

namespace moracle::cpu {

/// Columns in one stretch of decoded lines: two panels of it and the rows that meet it stay in the
/// first cache.
inline constexpr int64_t kStretchCols = 128;

/// Columns between the beginnings of two stretches of int8 sums: a whole row where one scale serves
/// it and codes need no decoding.
int64_t stretch_cols(const MatrixShape& shape, Arithmetic arithmetic);

class LinePanels {
 public:
  LinePanels(const KernelWeights& weights, Arithmetic arithmetic, int64_t x_group_cols);

  int64_t num_panels() const { return num_panels_; }
  /// Packed bytes of a panel's codes, and where they begin.
  int64_t code_lines() const { return vnni16::num_lines(weights_.shape); }
  const std::byte* codes(int64_t expert, int64_t panel) const {
    return weights_.expert(expert) + weights_.sections.codes +
           panel * vnni16::panel_bytes(weights_.shape);
  }

  /// A stretch of columns whose products have one scale, or none.
  struct Stretch {
    int64_t first = 0;  ///< column
    int64_t last = 0;   ///< past it
    int64_t group = 0;  ///< of the weights
    int64_t x_group = 0;
    int64_t index = 0;  ///< among the stretches of a row, where their length is stretch_cols()
  };
  /// The stretch that begins at `column`, below read_cols.
  Stretch stretch(int64_t column) const;
  int64_t read_cols() const { return read_cols_; }
  int64_t stretch_cols() const { return stretch_cols_; }
  int64_t lines(const Stretch& s) const { return (s.last - s.first) / cols_per_line_; }

  /// True where codes are multiplied as they lie.
  bool direct() const { return direct_; }
  /// Lines of a stretch: of the codes themselves, or decoded into `room` (of room_bytes).
  /// `prefetch` is what to ask for meanwhile, or null.
  const std::byte* lines(int64_t expert, int64_t panel, const Stretch& s, std::byte* room,
                         const std::byte* prefetch) const;
  static constexpr int64_t kRoomBytes = kStretchCols * kLineRows * 4;

  /// Scales of a stretch, [16], where products are scaled stretch by stretch: may be written to
  /// `room`. Null: none here.
  const float* stretch_scales(int64_t expert, int64_t panel, const Stretch& s, float* room) const;
  /// Zero points of a stretch of int8 lines, [16]. Null: none, or part of the decoded values.
  const int8_t* stretch_zeros(int64_t expert, int64_t panel, const Stretch& s) const;
  /// Scales of whole rows, [16], which enter at the end. Null: none.
  const float* row_scales(int64_t expert, int64_t panel, float* room) const;
  const float* bias(int64_t expert, int64_t panel) const;

 private:
  const float* scales_of(int64_t expert, int64_t panel, int64_t group, float* room) const;
  void decode(int64_t expert, int64_t panel, int64_t first, int64_t last, int64_t group,
              std::byte* to, const std::byte* prefetch) const;

  const KernelWeights& weights_;
  Arithmetic arithmetic_;
  int64_t num_panels_, num_groups_, group_cols_, x_group_cols_;
  int64_t cols_per_line_;  // of what is multiplied
  int64_t read_cols_;
  int64_t stretch_cols_;
  bool direct_;
  bool folded_;  // scales are part of the decoded values
};

}  // namespace moracle::cpu
