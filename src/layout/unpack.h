// The inverse of packing, for experts that move from one layout to another.
#pragma once

#include "layout/layout.h"

namespace moracle {

/// True if unpack reads this layout: those of the CPU rows.
bool unpacks(const Layout& layout);

/// The matrix of one packed expert. Requires unpacks(layout). Packing the result gives the same
/// bytes. What a layout folds stays folded: minimums may contain the zero points.
CanonicalMatrix unpack(const Layout& layout, const MatrixShape& shape, const std::byte* expert);

/// True if an expert packed as `from` can be packed again as `to`: one layout and one shape, or a
/// layout that unpack reads and that keeps what `to` needs (the canonical layout has no factors).
/// Both shapes have the same sizes and numbers; the sets of their codes may differ.
bool repacks(const Layout& from, const MatrixShape& from_shape, const Layout& to,
             const MatrixShape& to_shape);
/// Packs an expert again, on the caller's thread. Requires repacks. Errors: groups of columns that
/// the layout cannot sort.
Status repack(const Layout& from, const MatrixShape& from_shape, const std::byte* expert,
              const Layout& to, const MatrixShape& to_shape, std::byte* out);

}  // namespace moracle
