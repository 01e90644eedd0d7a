// The families' conventions by architecture, for the checkpoint room.
#include "checkpoint/experts/convention.h"

namespace moracle {

#define X(name, describe, experts) extern const ExpertConvention experts;
#include "models/families/families.inc"
#undef X

const ExpertConvention* find_convention(std::string_view architecture) {
#define X(name, describe, experts) \
  if (architecture == name) return &experts;
#include "models/families/families.inc"
#undef X
  return nullptr;
}

}  // namespace moracle
