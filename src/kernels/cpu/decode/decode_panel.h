// Any weight format as f32: one panel of layout panel16, decoded whole. It costs about as much as a
// few rows of the float tile, and any number of rows share it: how the cpu backend serves formats
// that have no tile of their own.
#pragma once

#include "kernels/kernel_weights.h"
#include "layout/panel16.h"

namespace moracle::cpu {

/// out[c·16 + r] = value(r, c) of panel `panel` of expert `e`, c < padded columns; 0 in the
/// padding.
void decode_panel(const KernelWeights& weights, int64_t e, int64_t panel, float* out);

}  // namespace moracle::cpu
