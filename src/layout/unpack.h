// The inverse of packing, for experts that move from one layout to another.
#pragma once

#include "layout/layout.h"

namespace moracle {

/// True if unpack reads this layout: those of the CPU rows.
bool unpacks(const Layout& layout);

/// Rows of one packed expert.
struct PackedRows {
  const Layout* layout;
  const MatrixShape* shape;  ///< of the whole expert
  const std::byte* expert;
  int64_t begin, end;  ///< multiples of row_step(shape); `end` may be the last row instead
};
/// The rows of one scale and of one panel begin at multiples of this.
int64_t row_step(const MatrixShape& shape);

/// The matrix of these rows. The threads of `pool` share them. Requires unpacks(layout). Packing
/// the result gives the same bytes. What a layout folds stays folded: minimums may contain the zero
/// points.
CanonicalMatrix unpack(const PackedRows& rows, ThreadPool& pool);

/// True if an expert packed as `from` can be packed again as `to`: one layout and one shape, or a
/// layout that unpack reads and that keeps what `to` needs (the canonical layout has no factors).
/// Both shapes have the same sizes and numbers; the sets of their codes may differ.
bool repacks(const Layout& from, const MatrixShape& from_shape, const Layout& to,
             const MatrixShape& to_shape);
/// Packs rows again, into the expert at `out`. The rows from 0 on must come first. Requires
/// repacks. Errors: groups of columns that the layout cannot sort.
Status repack(const PackedRows& rows, const Layout& to, const MatrixShape& to_shape,
              ThreadPool& pool, std::byte* out);

}  // namespace moracle
