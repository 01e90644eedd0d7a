// From a dtype to the code that decodes it: the only switch over number formats.
#pragma once

#include <optional>
#include <utility>

#include "moracle/quant.h"
#include "quant/codecs/bf16.h"
#include "quant/codecs/e2m1.h"
#include "quant/codecs/e4m3.h"
#include "quant/codecs/f16.h"
#include "quant/codecs/f32.h"
#include "quant/codecs/int4.h"
#include "quant/codecs/int8.h"

namespace moracle {

/// Calls `f.template operator()<Codec>()` for the codec of `dtype`; false where there is none.
template <class F>
bool visit_codec(DType dtype, F&& f) {
#define X(Codec)                    \
  if (dtype == Codec::kDType) {     \
    f.template operator()<Codec>(); \
    return true;                    \
  }
#include "quant/codecs.inc"
#undef X
  return false;
}

/// Row `r` of `matrix` as doubles, exactly as its scheme defines the values; `out` has k elements.
void dequantize_row(const CanonicalMatrix& matrix, int64_t r, double* out);

/// The codes of row `r` as floating-point or integer values without scale or zero point.
void decode_row(const CanonicalMatrix& matrix, int64_t r, double* out);

}  // namespace moracle
