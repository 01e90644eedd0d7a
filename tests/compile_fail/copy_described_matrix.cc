// A description is consumed by its one conversion: it moves and is not copied.
#include <utility>

#include "moracle/checkpoint.h"

moracle::DescribedMatrix take(moracle::DescribedMatrix& matrix) {
#ifdef MORACLE_MUST_NOT_COMPILE
  return matrix;
#else
  return std::move(matrix);
#endif
}
