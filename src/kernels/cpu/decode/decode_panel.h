// Decodes one panel of layout panel16 to f32, from any weight format. Decoding costs about as much
// as a few rows of the float tile, and all rows of an expert share it. The cpu backend uses it for
// formats that have no tile of their own.
#pragma once

#include "kernels/weights/kernel_weights.h"
#include "layout/panel16.h"

namespace moracle::cpu {

/// out[c·16 + r] = value(r, c) of panel `panel` of expert `e`, for c < padded columns; 0 in the
/// padding.
void decode_panel(const KernelWeights& weights, int64_t e, int64_t panel, float* out);

}  // namespace moracle::cpu
