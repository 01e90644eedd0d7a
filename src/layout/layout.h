// A layout defines the packed bytes of a matrix for one kernel: an index function and a converter,
// both pure. The converter takes canonical form and writes packed bytes. Experts follow one another
// at a fixed distance.
#pragma once

#include <cstddef>
#include <span>

#include "base/threads/thread_pool.h"
#include "moracle/layer.h"
#include "moracle/quant.h"

namespace moracle {

/// Start offsets of the sections of one packed expert, in bytes, aligned to 64 bytes. A section
/// that the shape does not need is empty: it ends where the next one begins.
struct Sections {
  size_t codes = 0;
  size_t scales = 0;
  size_t zero_points = 0;
  size_t minimums = 0;  ///< f32
  /// Group of each column. In a layout that sorts columns: the column of x that each column reads.
  size_t group_index = 0;
  size_t bias = 0;
  size_t row_factors = 0;  ///< f32 for each row, beside e4m3 scales
  size_t bytes = 0;        ///< total size: the distance to the next expert
};

struct Layout {
  std::string_view name;
  std::string_view summary;
  /// The weight dtypes that this layout supports.
  std::span<const DType> holds;
  /// Columns are ordered by group. An act-order matrix is packed with sorted columns
  /// (sorted_columns.h). Its activations are gathered in that order before the GEMM.
  bool sorts_columns = false;
  /// Added to each 4-bit integer code before it is stored: with 8, codes are unsigned.
  int i4_offset = 0;
  /// Has a section for the minimums of groups.
  bool holds_minimums = false;
  Sections (*sections)(const MatrixShape& shape);
  /// Number of activation columns that kernels read: k, or more if columns are padded. The caller
  /// must provide zeros in the padding.
  int64_t (*read_cols)(const MatrixShape& shape);
  /// Bit offset of code (r, c) in the codes section; a bijection onto the codes without padding.
  int64_t (*code_bit)(const MatrixShape& shape, int64_t r, int64_t c);
  /// Packs the codes of rows [begin, end) of a slice. The slice starts at row `first_row` of the
  /// expert at `out`. first_row and begin are multiples of kRowStep; end is a multiple or the
  /// slice's last row. Also writes the padding of these rows, so that packing over old bytes gives
  /// the same result.
  void (*pack_codes)(const MatrixShape& shape, const CanonicalMatrix& slice, int64_t first_row,
                     int64_t begin, int64_t end, std::byte* out);
  /// Packs everything else of the slice. The slice with the expert's row 0 must come first: it also
  /// writes the data that belongs to no row (column groups, padding between sections).
  void (*pack_beside)(const MatrixShape& shape, const CanonicalMatrix& slice, int64_t first_row,
                      std::byte* out);
};

/// True if the layout supports this weight dtype.
bool holds(const Layout& layout, DType type);

/// Row granularity of packing in every layout.
inline constexpr int64_t kRowStep = 16;

/// Packs one slice. The threads of `pool` share its rows; the bytes do not depend on the split.
void pack(const Layout& layout, const MatrixShape& shape, const CanonicalMatrix& slice,
          int64_t first_row, ThreadPool& pool, std::byte* out);
/// Packs a whole expert on the caller's thread.
void pack(const Layout& layout, const CanonicalMatrix& expert, std::byte* out);

#define X(layout) extern const Layout layout;
#include "layout/layouts.inc"
#undef X

/// Every layout, for tests that cover all layouts.
std::span<const Layout* const> layouts();

}  // namespace moracle
