// A layout is how one kernel wants the bytes of a matrix: an index function and a converter, both
// pure. Canonical form in, packed bytes out; one expert after another at a fixed distance.
#pragma once

#include <cstddef>
#include <span>

#include "base/thread_pool.h"
#include "moracle/checkpoint.h"
#include "moracle/quant.h"

namespace moracle {

/// Where the pieces of one packed expert begin, in bytes; each on a 64-byte boundary. A piece that
/// a shape does not need has no length: it ends where the next one begins.
struct Sections {
  size_t codes = 0;
  size_t scales = 0;
  size_t zero_points = 0;
  size_t group_index = 0;  ///< of each column; where the layout sorts, the column of x it reads
  size_t bias = 0;
  size_t bytes = 0;  ///< all of it: the distance to the next expert
};

struct Layout {
  std::string_view name;
  std::string_view summary;
  /// The weight formats that it can hold.
  std::span<const DType> holds;
  /// Columns lie group after group. A matrix in act-order is packed with its columns sorted
  /// (sorted_columns.h), and activations are gathered in that order before they are multiplied.
  bool sorts_columns = false;
  Sections (*sections)(const MatrixShape& shape);
  /// Columns of the activations that kernels read: k, or more where columns are padded; then the
  /// caller provides zeros.
  int64_t (*read_cols)(const MatrixShape& shape);
  /// Bit of code (r, c) within the codes section; a bijection onto the codes without their padding.
  int64_t (*code_bit)(const MatrixShape& shape, int64_t r, int64_t c);
  /// Writes the codes of rows [begin, end) of a piece, which is the rows from `first_row` on of the
  /// expert at `out`: first_row and begin are multiples of kRowStep, end too or the piece's last.
  /// Padding of these rows included, so that packing over old bytes gives the same result.
  void (*pack_codes)(const MatrixShape& shape, const CanonicalMatrix& piece, int64_t first_row,
                     int64_t begin, int64_t end, std::byte* out);
  /// Writes everything else of the piece. The piece with the expert's row 0 comes before all others
  /// and brings what belongs to no row: column groups, padding between sections.
  void (*pack_beside)(const MatrixShape& shape, const CanonicalMatrix& piece, int64_t first_row,
                      std::byte* out);
};

/// Rows that are packed together by any layout.
inline constexpr int64_t kRowStep = 16;

/// One piece, its rows split over the threads of `pool`; the bytes do not depend on how.
void pack(const Layout& layout, const MatrixShape& shape, const CanonicalMatrix& piece,
          int64_t first_row, ThreadPool& pool, std::byte* out);
/// A whole expert on the caller's thread.
void pack(const Layout& layout, const CanonicalMatrix& expert, std::byte* out);

#define X(layout) extern const Layout layout;
#include "layout/layouts.inc"
#undef X

/// Every layout, for the tests that hold for all.
std::span<const Layout* const> layouts();

}  // namespace moracle
