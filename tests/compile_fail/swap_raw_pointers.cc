// In braces at the call, the element types still keep ids and weights apart.
#include "moracle/moe.h"

moracle::Status run(moracle::FusedMoe& moe, const moracle::Matrix& hidden, const int32_t* ids,
                    const float* weights, const moracle::Matrix& output) {
#ifdef MORACLE_MUST_NOT_COMPILE
  return moe.apply(hidden, {weights}, {ids}, output);
#else
  return moe.apply(hidden, {ids}, {weights}, output);
#endif
}
