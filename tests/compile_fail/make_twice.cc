// A layer is made from a description that it consumes.
#include "moracle/moe.h"

using namespace moracle;

Result<FusedMoe> make(DescribedWeights& weights, const Selection& selection,
                      std::shared_ptr<Device> device) {
#ifdef MORACLE_MUST_NOT_COMPILE
  return FusedMoe::make(weights, selection, device);
#else
  return FusedMoe::make(std::move(weights), selection, device);
#endif
}
