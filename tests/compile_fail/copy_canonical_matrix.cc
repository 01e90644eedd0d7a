// A copy's codes would view the original's storage: canonical matrices only move.
#include <utility>

#include "moracle/quant.h"

moracle::CanonicalMatrix take(moracle::CanonicalMatrix& matrix) {
#ifdef MORACLE_MUST_NOT_COMPILE
  return matrix;
#else
  return std::move(matrix);
#endif
}
